"""Decide reviews by posted rules: publish them, or remove them with the reason of the rule they break."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.website.task import AS_STAFF, staff_materials, task
from muster_suites.website.world import Shop

_GOOD: Final = ("Works well.", "A fine thing, I use it every day.", "Too small for me.", "Not bad, but not cheap.")
_RULES: Final = {
    "contact data": "It holds an e-mail address or a phone number.",
    "shouting": "It is written in capital letters only.",
    "insult": "It calls someone an idiot or a liar.",
    "advertising": "It names a web address.",
}
"""Reason of a removal -> the rule. Of several that are broken, the first counts."""


def _breach(draw: Draw, reason: str) -> str:
    """A sentence that breaks the rule."""
    mail, phone = f"{draw.pair('.')}@example.org", f"0{draw.number(10**7, 10**8)}"
    return {
        "contact data": draw.choice((f"Write to {mail} for more.", f"Call me: {phone}.")),
        "shouting": "NEVER BUY THIS AGAIN.",
        "insult": f"The seller is {draw.choice(('an idiot', 'a liar'))}.",
        "advertising": f"Cheaper at www.{draw.pair('')}.example, believe me.",
    }[reason]


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(6)
    staff = shop.user(role="staff")
    rules = list(_RULES)[: draw.at(1, 2, 3, 4, 4)]
    for _ in range(draw.at(0, 2, 4, 8, 10)):
        _add_review(draw, shop, draw.choice(_GOOD), status="published")
    # every rule is broken at least once, and at least one review breaks none
    more = draw.at(3, 6, 12, 18, 28) - len(rules) - 1
    reasons = draw.shuffled([*rules, "", *(draw.choice(["", *rules]) for _ in range(more))])
    for reason in reasons:
        _add_review(draw, shop, _review(draw, reason), status="pending")
    text = "".join(f"{n}. {_RULES[reason]} Reason: {reason}.\n" for n, reason in enumerate(rules, 1))
    shop.add(
        "documents", name="reviews", title="What we do not publish", text=f"The first rule that fits counts.\n{text}"
    )
    after = shop.copy()
    for row, reason in zip(after.select("reviews", status="pending"), reasons, strict=True):
        row.update(status="removed" if reason else "published", reason=reason)
    return task(
        shop,
        after,
        text=(
            f"{AS_STAFF} Decide every pending review at /office/reviews by the rules of the page /pages/reviews: "
            "remove it with the reason of the rule that it breaks, or publish it if it breaks none."
        ),
        user=staff,
        solve=_SOLVE,
        values={},
        max_turns=draw.at(12, 16, 24, 30, 40),
        materials=staff_materials(shop, staff),
    )


def _review(draw: Draw, reason: str) -> str:
    if reason == "shouting":
        return _breach(draw, reason)
    said = draw.choice(_GOOD)
    if reason:
        said += f" {_breach(draw, reason)}"
    if draw.difficulty == 5 and reason == "contact data":
        said += f" {_breach(draw, 'advertising')}"
    return said


def _add_review(draw: Draw, shop: Shop, text: str, *, status: str) -> None:
    product, author = draw.choice(shop.table("products")), draw.pair("").title()
    shop.add(
        "reviews", product_id=product["id"], author=author, stars=draw.number(1, 5), text=text, status=status, reason=""
    )


_SOLVE = """\
import re

signs = {"contact data": "@|[0-9]{6}", "shouting": "^[^a-z]*$", "insult": "idiot|liar", "advertising": "www"}
for row in list(site.rows("/office/reviews")):
    broken = [reason for reason, sign in signs.items() if re.search(sign, row["Text"])]
    decision = "remove" if broken else "publish"
    site.submit(row["href"], row["href"], decision=decision, reason=broken[0] if broken else "")
"""

REVIEWS: Final = Family(
    name="website-reviews",
    suite="website",
    make=_make,
    levels=(
        "3 reviews, one rule",
        "6 reviews, two rules",
        "12 reviews on two pages, three rules",
        "18 reviews, four rules",
        "28 reviews, some of which break two rules",
    ),
)
