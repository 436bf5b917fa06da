"""From a shop before and after to a task: what all families of the suite share."""

from __future__ import annotations

from collections.abc import Mapping

from muster_suites.frame import Instance
from muster_suites.service.store import Row
from muster_suites.service.task import URL, Case, assigned, instance
from muster_suites.website.world import PROGRAM, Shop


def task(
    before: Shop,
    after: Shop,
    *,
    text: str,
    user: Row | None,
    solve: str,
    values: Mapping[str, object],
    max_turns: int,
    materials: Mapping[str, str] | None = None,
    loose: Mapping[str, tuple[str, ...]] | None = None,
) -> Instance:
    """`text` says what is to be done; where and how is said here, once.

    `solve` is Python that uses `site` of `client`, logged in as `user` if there is one, and `values` by name.
    """
    begin = f"site = Browser({URL!r})\n"
    if user is not None:
        begin += f"site.login({user['login']!r}, {before.passwords[user['login']]!r})\n"
    return instance(
        PROGRAM,
        Case(
            instruction=(
                f"{before.name} is a web shop at {URL}, for example `curl -s -b jar -c jar {URL}/products`. Its forms "
                "carry a hidden field csrf, which must be sent back; /login has the form to log in. Everything must be "
                f"done through the site.\n\n{text}\n\nChange nothing else."
            ),
            before=before.rows,
            after=after.rows,
            settings=before.settings,
            steps=f"{begin}{assigned(values)}{solve}",
            max_turns=max_turns,
            materials=materials or {},
            loose=loose or {},
        ),
    )


def staff_materials(shop: Shop, staff: Row, **more: str) -> dict[str, str]:
    """Materials of the staff: what AS_STAFF tells of, and other files: `prices_csv` is /app/prices.csv."""
    text = f"office of {shop.name}\nuser name: {staff['login']}\npassword: {shop.passwords[staff['login']]}\n"
    return {"staff.txt": text, **{name.replace("_", "."): content for name, content in more.items()}}


AS_STAFF = "Log in as staff, with what /app/staff.txt says."
