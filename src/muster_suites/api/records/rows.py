"""Listing, reading, making, changing and deleting records of any kind. Travels into the image of a task.

Law: who changes or deletes a record says in If-Match which version was read (its ETag); another version is refused,
so no change of someone else is lost.
"""

from __future__ import annotations

import base64
from typing import Any

from muster_suites.api.records.call import Call, answer, refusal
from muster_suites.api.records.resources import RESOURCES, Resource, problem, stored
from muster_suites.service.http import Response
from muster_suites.service.store import Row

PAGE_SIZE = 10
LARGEST_PAGE = 25


def _resource(call: Call, verb: str = "") -> Resource:
    resource = RESOURCES.get(call.arguments[0])
    if resource is None:
        raise refusal(404, "not_found", f"There are no {call.arguments[0]}.")
    if verb and verb not in resource.verbs:
        raise refusal(405, "not_allowed", f"One cannot {verb} {resource.name}.")
    return resource


def _row(call: Call, resource: Resource) -> Row:
    row = call.store.one(f"SELECT * FROM {resource.name} WHERE id = ?", int(call.arguments[1]))
    if row is None:
        raise refusal(404, "not_found", f"There is no {resource.name}/{call.arguments[1]}.")
    return row


def _tag(version: int) -> str:
    return f'"v{version}"'


def _shown(resource: Resource, row: Row, status: int = 200) -> Response:
    return answer(status, resource.shown(row), ("ETag", _tag(row["version"])))


def listing(call: Call) -> Response:
    """One page. `page` counts from 1; a `cursor` is what the page before gave as `next_cursor`."""
    resource = _resource(call)
    limit = _number(call, "limit", PAGE_SIZE, LARGEST_PAGE)
    if resource.paging == "page":
        total = call.store.value(f"SELECT count(*) FROM {resource.name}")
        pages = max(1, -(-total // limit))
        page = _number(call, "page", 1, pages)
        rows = call.store.all(f"SELECT * FROM {resource.name} ORDER BY id LIMIT ? OFFSET ?", limit, (page - 1) * limit)
        return answer(200, {"items": [resource.shown(row) for row in rows], "page": page, "pages": pages})
    after = _position(call.request.query.get("cursor", ""))
    rows = call.store.all(f"SELECT * FROM {resource.name} WHERE id > ? ORDER BY id LIMIT ?", after, limit + 1)
    more = _cursor(rows[limit - 1]["id"]) if len(rows) > limit else None
    return answer(200, {"items": [resource.shown(row) for row in rows[:limit]], "next_cursor": more})


def _number(call: Call, name: str, default: int, most: int) -> int:
    text = call.request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise refusal(422, "invalid", {name: f"must be a number from 1 to {most}"})
    return int(text)


def _cursor(after: int) -> str:
    return base64.urlsafe_b64encode(f"after {after}".encode()).decode()


def _position(cursor: str) -> int:
    if not cursor:
        return 0
    try:
        after = int(base64.urlsafe_b64decode(cursor).decode().removeprefix("after "))
    except ValueError:  # of the encoding, of the text or of the number
        after = -1
    if cursor != _cursor(after):
        raise refusal(422, "invalid", {"cursor": "is none of ours"})
    return after


def read(call: Call) -> Response:
    resource = _resource(call)
    return _shown(resource, _row(call, resource))


def create(call: Call) -> Response:
    resource = _resource(call, "create")
    values = _checked(resource, call.data(), whole=True)
    for name, field in resource.fields.items():
        if field.unique and call.store.one(f"SELECT id FROM {resource.name} WHERE {name} = ?", values[name]):
            raise refusal(409, "exists", f"There is a record with {name} {values[name]} already.")
    columns, holes = ", ".join(values), ", ".join("?" * len(values))
    number = call.store.run(f"INSERT INTO {resource.name} ({columns}) VALUES ({holes})", *values.values())
    row = call.store.one(f"SELECT * FROM {resource.name} WHERE id = ?", number)
    assert row is not None
    shown = _shown(resource, row, 201)
    return shown._replace(headers=(*shown.headers, ("Location", f"/v1/{resource.name}/{number}")))


def change(call: Call) -> Response:
    """The fields that are sent; the others stay."""
    resource = _resource(call, "change")
    row, values = _row(call, resource), _checked(resource, call.data(), whole=False)
    raced = _raced(call, resource, row)
    if raced is not None:
        return raced
    _matched(call, row)
    settings = "".join(f"{name} = ?, " for name in values)
    call.store.run(
        f"UPDATE {resource.name} SET {settings}version = version + 1 WHERE id = ?", *values.values(), row["id"]
    )
    return read(call)


def delete(call: Call) -> Response:
    resource = _resource(call, "delete")
    row = _row(call, resource)
    _matched(call, row)
    if resource.name == "volumes" and call.store.one("SELECT id FROM snapshots WHERE volume_id = ?", row["id"]):
        raise refusal(409, "in_use", "This volume has snapshots: delete them first.")
    call.store.run(f"DELETE FROM {resource.name} WHERE id = ?", row["id"])
    return answer(200, {"deleted": row["id"]})


def _matched(call: Call, row: Row) -> None:
    wanted = call.request.headers.get("if-match")
    if wanted is None:
        raise refusal(428, "if_match_required", "Send the ETag that you read in the header If-Match.")
    if wanted != _tag(row["version"]):
        raise refusal(412, "changed", f"Someone changed it: its ETag is {_tag(row['version'])} now. Read it again.")


def _raced(call: Call, resource: Resource, row: Row) -> Response | None:
    """Another client was faster: its change is made, and this one refused. That is an answer, not taken back."""
    if resource.name != "documents" or call.request.headers.get("if-match") != _tag(row["version"]):
        return None
    edit = call.store.one("SELECT * FROM edits WHERE document_id = ? ORDER BY id", row["id"])
    if edit is None:
        return None
    tags = ",".join(sorted({*filter(None, row["tags"].split(",")), edit["tag"]}))
    call.store.run("UPDATE documents SET tags = ?, version = version + 1 WHERE id = ?", tags, row["id"])
    call.store.run("DELETE FROM edits WHERE id = ?", edit["id"])
    return answer(412, {"error": "changed", "message": "Someone changed it in the meantime. Read it again."})


def _checked(resource: Resource, data: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """The values to store. `whole`: every field must be there that is not the service's own."""
    problems: dict[str, str] = {}
    for name, value in data.items():
        field = resource.fields.get(name)
        if field is None or field.own:
            problems[name] = "is not a field that can be set"
        elif field.frozen and not whole:
            problems[name] = "cannot be changed"
        elif wrong := problem(field, value):
            problems[name] = wrong
    if whole:
        needed = (name for name, field in resource.fields.items() if not field.own)
        problems |= {name: "is missing" for name in needed if name not in data}
    elif not data:
        problems["body"] = "names no field"
    if problems:
        raise refusal(422, "invalid", problems)
    return {name: stored(resource.fields[name], value) for name, value in data.items()}
