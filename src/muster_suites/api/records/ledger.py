"""Transfers between accounts: one, or a batch that is booked whole or not at all. Travels into the image of a task.

Law: at the end of a request no account is below its floor; in the middle of a batch it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from muster_suites.api.records.call import Call, answer, refusal
from muster_suites.api.records.resources import Field, problem
from muster_suites.service.http import Response

_FIELDS = {
    "source": Field(),
    "target": Field(),
    "amount_cents": Field(kind="number", hint="a whole number of 1 or more"),
    "note": Field(),
}
_LARGEST_BATCH = 100


def transfers(call: Call) -> Response:
    rows = call.store.all("SELECT * FROM transfers ORDER BY id")
    return answer(200, {"items": rows})


def transfer(call: Call) -> Response:
    return _booked(call, [call.data()])


def batch(call: Call) -> Response:
    sent = call.data().get("transfers")
    orders = cast("list[object]", sent) if isinstance(sent, list) else []
    if not 1 <= len(orders) <= _LARGEST_BATCH:
        raise refusal(422, "invalid", {"transfers": f"must be a list of 1 to {_LARGEST_BATCH} transfers"})
    return _booked(call, orders)


def _booked(call: Call, orders: Sequence[object]) -> Response:
    numbers = [_book(call, place, order) for place, order in enumerate(orders)]
    low = call.store.all("SELECT * FROM accounts WHERE balance_cents < floor_cents ORDER BY id")
    if low:
        names = ", ".join(row["name"] for row in low)
        raise refusal(422, "below_floor", f"Nothing is booked: this would leave below their floor: {names}.")
    return answer(201, {"transfers": numbers})


def _book(call: Call, place: int, sent: object) -> int:
    order = cast("dict[str, Any]", sent) if isinstance(sent, dict) else {}
    if set(order) != set(_FIELDS):
        raise refusal(422, "invalid", {f"transfer {place}": f"must have the fields {', '.join(_FIELDS)}"})
    problems = {name: wrong for name, field in _FIELDS.items() if (wrong := problem(field, order[name]))}
    if order["amount_cents"] == 0 or order["source"] == order["target"]:
        problems["amount_cents"] = "must move something from one account to another"
    if problems:
        raise refusal(422, "invalid", {f"transfer {place}": problems})
    for name, sign in ((order["source"], -1), (order["target"], 1)):
        if not call.store.one("SELECT id FROM accounts WHERE name = ?", name):
            raise refusal(422, "invalid", {f"transfer {place}": f"there is no account {name}"})
        call.store.run(
            "UPDATE accounts SET balance_cents = balance_cents + ?, version = version + 1 WHERE name = ?",
            *(sign * order["amount_cents"], name),
        )
    values = (order["source"], order["target"], order["amount_cents"], order["note"])
    return call.store.run("INSERT INTO transfers (source, target, amount_cents, note) VALUES (?, ?, ?, ?)", *values)
