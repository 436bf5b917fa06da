"""Book workshops through pages that belong together: a day that is named, or the first one that fits."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.shop.pages import money
from muster_suites.website.shop.workshops import MATERIALS
from muster_suites.website.task import task
from muster_suites.website.world import Shop

_LEVELS: Final = ("beginner", "advanced", "expert")
_ANY_PRICE: Final = 1_000_000


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    user = shop.user()
    for _ in range(draw.at(2, 4, 8, 12, 20)):
        _add_workshop(draw, shop)
    chosen = draw.sample(shop.table("workshops"), draw.at(1, 1, 1, 2, 3))
    bookings = [_booking(draw, shop, workshop) for workshop in chosen]
    after = shop.copy()
    for booking, _, _ in bookings:
        after.add("bookings", user_id=user["id"], **booking)
        after.get("slots", id=booking["slot_id"])["free"] -= booking["seats"]
    said = [f"Log in as a customer ({shop.login_of(user)}) and book through /workshops:"]
    return task(
        shop,
        after,
        text="\n".join([*said, *(f"- {described}" for _, _, described in bookings)]),
        user=user,
        solve=_SOLVE,
        values={"ASKED": [asked for _, asked, _ in bookings]},
        max_turns=draw.at(10, 12, 14, 20, 26),
        loose={"bookings": ("id",)},
    )


def _add_workshop(draw: Draw, shop: Shop) -> None:
    workshop = shop.add("workshops", title=f"{draw.pair(' ').title()} Workshop", place=draw.pair("").title())
    for day in sorted(draw.sample(range(3, 80), draw.at(2, 3, 5, 6, 8))):
        shop.add(
            "slots",
            workshop_id=workshop["id"],
            day=shop.day(-day),
            level=draw.choice(_LEVELS),
            price_cents=draw.number(20, 90) * 100,
            free=draw.number(1, 12),
        )


def _booking(draw: Draw, shop: Shop, workshop: Row) -> tuple[Row, tuple[object, ...], str]:
    """The row that a booking of one of its days makes, what is asked for, and that in words.

    Asked for are title, day ("" for the first), level ("" for any), highest price, seats, material, contact and
    phone. There may be more seats free on this day afterwards, so that the words fit it, and fit no day before it.
    """
    slots = shop.select("slots", workshop_id=workshop["id"])
    slot = draw.choice(slots)
    day, level, cap, when = slot["day"], "", _ANY_PRICE, f"on {slot['day']}"
    seats = draw.number(1, slot["free"])
    if draw.difficulty >= 2:
        day, when = "", "the first day on which enough seats are free"
        rivals = [other for other in slots if other["day"] < slot["day"]]
        if draw.difficulty >= 3:
            level, when = slot["level"], f"the first day of level {slot['level']} on which enough seats are free"
            rivals = [other for other in rivals if other["level"] == level]
        if draw.difficulty >= 4:
            cap = slot["price_cents"] + draw.number(0, 9) * 100
            when += f" and a seat costs at most {money(cap)}"
            rivals = [other for other in rivals if other["price_cents"] <= cap]
        seats = max((other["free"] for other in rivals), default=0) + draw.number(1, 2)
        slot["free"] = max(slot["free"], seats)
    material, contact, phone = draw.choice(list(MATERIALS)), draw.pair(" ").title(), f"0{draw.number(10**8, 10**9)}"
    booking = {
        "slot_id": slot["id"],
        "seats": seats,
        "material": material,
        "contact": contact,
        "phone": phone,
        "total_cents": seats * (slot["price_cents"] + MATERIALS[material]),
    }
    words = f"{workshop['title']}, {when}: number of seats {seats}, {material}, contact {contact}, phone {phone}."
    return booking, (workshop["title"], day, level, cap, seats, material, contact, phone), words


_SOLVE = """\
for title, day, level, cap, seats, material, contact, phone in ASKED:
    for row in site.rows(site.find("/workshops", Workshop=title)["href"]):
        fits = row["Day"].startswith(day) and row["Level"].startswith(level)
        if fits and int(row["Free seats"]) >= seats and cents(row["Price of a seat"]) <= cap:
            break
    page = site.submit(row["href"], "/book/seats", seats=seats, material=material)
    page = site.submit(page, "/book/contact", contact=contact, phone=phone)
    site.submit(page, "/book/confirm")
"""

BOOKING: Final = Family(
    name="website-booking",
    suite="website",
    make=_make,
    levels=(
        "a day that is named",
        "the first day with enough seats",
        "of a level",
        "below a price; two workshops of 12",
        "three workshops of 20 with eight days each",
    ),
)
