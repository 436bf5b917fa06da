"""Change documents that other clients change too: read again what was refused, and keep what the others added."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, task
from muster_suites.frame import Draw, Family, Instance


def _make(draw: Draw) -> Instance:
    records = Records(draw)
    owners, tags = draw.words(3), draw.words(8)
    add, drop = draw.words(2)
    for number in range(draw.at(4, 8, 14, 20, 30)):
        own = {*draw.sample(tags, draw.number(0, 3)), *([drop] if draw.chance(0.4) else [])}
        owner = owners[0] if number % 3 == 0 else draw.choice(owners[1:])
        records.add("documents", title=draw.pair(" ").title(), owner=owner, tags=_joined(own))
    after = records.copy()
    mine = after.select("documents", owner=owners[0])
    if draw.difficulty == 1:
        del mine[1:]
    others = draw.at(0, 0, 2, 4, 9)
    for row in mine[:others]:
        theirs = draw.choice([tag for tag in tags if tag not in row["tags"].split(",")])
        records.add("edits", document_id=row["id"], tag=theirs)
        row["tags"] = _joined({*row["tags"].split(","), theirs})
    gone = drop if draw.difficulty >= 4 else ""
    for row in mine:
        row["tags"] = _joined({*row["tags"].split(","), add} - {gone})
    which = f"the document {mine[0]['title']}" if draw.difficulty == 1 else f"every document of the owner {owners[0]}"
    said = f"Add the tag {add} to {which}."
    if gone:
        said += f" Take the tag {gone} off these documents."
    said += f" Keep all other tags{', also those that other people add while you work' if others else ''}."
    return task(
        records,
        after,
        text=said,
        solve=_SOLVE,
        values={
            "OWNER": owners[0],
            "TITLE": mine[0]["title"] if draw.difficulty == 1 else "",
            "ADD": add,
            "DROP": gone,
        },
        max_turns=draw.at(8, 12, 16, 22, 28),
    )


def _joined(words: set[str]) -> str:
    return ",".join(sorted(words - {""}))


_SOLVE = """\
def decide(record):
    return {"tags": [tag for tag in {*record["tags"], ADD} if tag != DROP]}


for document in list(api.every("documents")):
    if document["owner"] == OWNER and document["title"].startswith(TITLE):
        api.change(f"/v1/documents/{document['id']}", decide)
"""

TAGS: Final = Family(
    name="api-tags",
    suite="api",
    make=_make,
    levels=(
        "one document",
        "all of an owner",
        "and two are changed by others in the meantime",
        "another tag goes; four changes by others",
        "ten documents, almost all are changed by others",
    ),
)
