"""Workshops, booked on three pages: seats, contact, confirmation. Travels into the image of a task.

    /workshops/7 ─► /book/seats ─► /book/contact ─► /book/confirm ─► a booking

Nothing is kept between the pages: each carries what was said so far in hidden fields, with a proof that the page
before was passed with just that.
"""

from __future__ import annotations

import re

from muster_suites.service.http import Refusal, Response
from muster_suites.service.store import Row, digest
from muster_suites.website.shop.pages import Html, element, field, hidden, link, money, select, table
from muster_suites.website.shop.visit import PUBLIC, Route, Visit

MATERIALS = {"own material": 0, "basic material": 500, "full material": 1200}
"""Price for each seat, in cents."""


def _workshops(visit: Visit) -> Response:
    def show(rows: list[Row]) -> Html:
        return table(("Workshop", "Place"), ((link(f"/workshops/{r['id']}", r["title"]), r["place"]) for r in rows))

    return visit.listing("Workshops", visit.store.all("SELECT * FROM workshops ORDER BY id"), show)


def _workshop(visit: Visit) -> Response:
    workshop = visit.found(visit.store.one("SELECT * FROM workshops WHERE id = ?", visit.number), "workshop")
    slots = visit.store.all("SELECT * FROM slots WHERE workshop_id = ? ORDER BY day, id", workshop["id"])
    rows = (
        (s["day"], s["level"], money(s["price_cents"]), s["free"], link(f"/book/seats?slot={s['id']}", "Book"))
        for s in slots
    )
    head = ("Day", "Level", "Price of a seat", "Free seats", "")
    return visit.page(workshop["title"], element("p", f"Place: {workshop['place']}"), table(head, rows))


def _slot(visit: Visit, number: str) -> Row:
    sql = "SELECT slots.*, title FROM slots JOIN workshops ON workshops.id = workshop_id WHERE slots.id = ?"
    return visit.found(visit.store.one(sql, number), "day of a workshop")


def _proof(visit: Visit, page: str, *said: object) -> str:
    return digest(visit.store.setting("secret"), page, visit.user["id"], *said)


def _check(visit: Visit, page: str, *said: object) -> None:
    if visit.field("proof") != _proof(visit, page, *said):
        raise Refusal(409, "The pages of a booking belong together: start again at the workshop.")


def _seats_form(visit: Visit) -> Response:
    slot = _slot(visit, visit.request.query.get("slot", ""))
    fields = [
        hidden("slot", slot["id"]),
        hidden("proof", _proof(visit, "seats", slot["id"])),
        field("Seats", "seats", 1),
        select("Material", "material", MATERIALS),
    ]
    title = f"Book: {slot['title']}, {slot['day']} ({slot['level']})"
    return visit.page(title, visit.form("/book/seats", fields, "Next: contact"))


def _seats(visit: Visit) -> Response:
    slot = _slot(visit, visit.field("slot"))
    _check(visit, "seats", slot["id"])
    seats, material = visit.count("seats", high=20), visit.option("material", MATERIALS)
    _must_be_free(slot, seats)
    fields = [
        hidden("slot", slot["id"]),
        hidden("seats", seats),
        hidden("material", material),
        hidden("proof", _proof(visit, "contact", slot["id"], seats, material)),
        field("Contact name", "contact"),
        field("Phone (digits only)", "phone"),
    ]
    return visit.page("Book: contact", visit.form("/book/contact", fields, "Next: confirm"))


def _contact(visit: Visit) -> Response:
    slot, seats, material = _slot(visit, visit.field("slot")), visit.count("seats"), visit.field("material")
    _check(visit, "contact", slot["id"], seats, material)
    contact, phone = visit.field("contact"), visit.field("phone")
    if not re.fullmatch(r"\d{6,12}", phone):
        raise Refusal(422, "The phone number must have 6 to 12 digits and nothing else.")
    said = {"slot": slot["id"], "seats": seats, "material": material, "contact": contact, "phone": phone}
    fields = [hidden(name, value) for name, value in said.items()]
    fields.append(hidden("proof", _proof(visit, "confirm", *said.values())))
    what = f"{seats} seats at {slot['title']} on {slot['day']}, {material}: {money(_total(slot, seats, material))}."
    return visit.page("Book: confirm", element("p", what), visit.form("/book/confirm", fields, "Book"))


def _confirm(visit: Visit) -> Response:
    slot, seats, material = _slot(visit, visit.field("slot")), visit.count("seats"), visit.field("material")
    contact, phone = visit.field("contact"), visit.field("phone")
    _check(visit, "confirm", slot["id"], seats, material, contact, phone)
    _must_be_free(slot, seats)
    booking = visit.store.run(
        "INSERT INTO bookings (user_id, slot_id, seats, material, contact, phone, total_cents) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        *(visit.user["id"], slot["id"], seats, material, contact, phone, _total(slot, seats, material)),
    )
    visit.store.run("UPDATE slots SET free = free - ? WHERE id = ?", seats, slot["id"])
    return visit.done(f"Booking {booking} is made.", f"/workshops/{slot['workshop_id']}")


def _must_be_free(slot: Row, seats: int) -> None:
    if seats > slot["free"]:
        raise Refusal(422, f"Only {slot['free']} seats are free.")


def _total(slot: Row, seats: int, material: str) -> int:
    return seats * (slot["price_cents"] + MATERIALS[material])


ROUTES = (
    Route("GET", "/workshops", _workshops, PUBLIC),
    Route("GET", r"/workshops/(\d{1,6})", _workshop, PUBLIC),
    Route("GET", "/book/seats", _seats_form),
    Route("POST", "/book/seats", _seats),
    Route("POST", "/book/contact", _contact),
    Route("POST", "/book/confirm", _confirm),
)
