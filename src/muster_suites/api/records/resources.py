"""What kinds of records there are: their fields, and what may be done with them. Travels into the image of a task.

Law: data, and the checks of one value. A value that comes in is checked against its field; nothing else gets into the
database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from muster_suites.service.store import Row


class Field(NamedTuple):
    """Of `text`: its pattern. Of `number`: 0 and above. Of `words`: a list of words, kept sorted and unique."""

    kind: Literal["text", "number", "words"] = "text"
    pattern: str = r"[^\x00-\x1f\ud800-\udfff]{1,200}"
    hint: str = "a text of 1 to 200 characters"
    frozen: bool = False  # set when a record is made, and never after
    own: bool = False  # the service sets it, and no client
    unique: bool = False


class Resource(NamedTuple):
    """Records of one kind; `verbs` are of create, change, delete."""

    name: str
    fields: Mapping[str, Field]
    verbs: tuple[str, ...] = ()
    paging: Literal["cursor", "page"] = "page"

    def shown(self, row: Row) -> Row:
        """As a client sees it."""
        values = {
            name: [word for word in row[name].split(",") if word] if field.kind == "words" else row[name]
            for name, field in self.fields.items()
        }
        return {"id": row["id"], **values, "version": row["version"]}


_DAY = Field(pattern=r"\d{4}-\d\d-\d\d", hint="a day such as 2031-05-20")
_FLAG = Field(pattern="yes|no", hint="yes or no")
_NUMBER = Field(kind="number", hint="a whole number of 0 or more")
_WORDS = Field(kind="words", pattern=r"[a-z0-9-]{1,40}", hint="a list of words of a to z, 0 to 9 and -")
_NAME = Field(frozen=True)
_EMAIL = Field(pattern=r"[a-z0-9.]+@[a-z0-9.]+", hint="an e-mail address in small letters", frozen=True, unique=True)
_PHONE = Field(pattern=r"\+\d{8,14}", hint="a phone number as +4915112345: a plus and digits, nothing between them")
_MODEL = Field(pattern=r"[\w -]{0,60}", hint="a text of at most 60 letters, digits, - and blanks")

RESOURCES = {
    resource.name: resource
    for resource in (
        Resource(
            name="contacts",
            fields={"email": _EMAIL, "name": Field(), "phone": _PHONE, "city": Field(), "tier": Field(own=True)},
            verbs=("create", "change", "delete"),
            paging="cursor",
        ),
        Resource(
            name="orders",
            fields={"number": _NAME, "region": _NAME, "status": _NAME, "placed_on": _DAY, "total_cents": _NUMBER},
        ),
        Resource(name="refunds", fields={"order_number": _NAME, "amount_cents": _NUMBER}, paging="cursor"),
        Resource(
            name="reports",
            fields={"region": _NAME._replace(unique=True), "orders": _NUMBER, "total_cents": _NUMBER},
            verbs=("create", "change", "delete"),
        ),
        Resource(name="accounts", fields={"name": _NAME, "balance_cents": _NUMBER, "floor_cents": _NUMBER}),
        Resource(
            name="documents",
            fields={"title": _NAME, "owner": _NAME, "tags": _WORDS},
            verbs=("change",),
            paging="cursor",
        ),
        Resource(
            name="volumes",
            fields={"name": _NAME, "owner": _NAME, "last_used": _DAY, "protected": _FLAG},
            verbs=("delete",),
        ),
        Resource(name="snapshots", fields={"volume_id": _NUMBER, "keep": _FLAG}, verbs=("delete",), paging="cursor"),
        Resource(
            name="items",
            fields={"code": _NAME, "name": Field(), "quantity": _NUMBER},
            verbs=("create", "change", "delete"),
            paging="cursor",
        ),
        Resource(
            name="members",
            fields={"login": _NAME, "department": _NAME, "active": _FLAG._replace(frozen=True), "roles": _WORDS},
            verbs=("change",),
        ),
        Resource(
            name="assets",
            fields={"serial": _NAME, "model": _MODEL, "weight_g": _NUMBER},
            verbs=("change",),
            paging="cursor",
        ),
    )
}


def problem(field: Field, value: Any) -> str:
    """What is wrong with a value of a client; empty if nothing is."""
    good = False
    if field.kind == "number":
        good = type(value) is int and 0 <= value < 1 << 53
    elif field.kind == "text":
        good = isinstance(value, str) and re.fullmatch(field.pattern, value) is not None
    elif isinstance(value, list):
        words = cast("list[object]", value)
        good = len(words) <= 50 and all(isinstance(word, str) and re.fullmatch(field.pattern, word) for word in words)
    return "" if good else f"must be {field.hint}"


def stored(field: Field, value: Any) -> Any:
    return ",".join(sorted(set(value))) if field.kind == "words" else value
