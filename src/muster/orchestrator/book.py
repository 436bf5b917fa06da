"""The book of groups: their journal rows, from admission to the end.

    admitted ─► open ─► ready ─► trained
                  └───────┴────► dropped, with the reason

Law: a row is committed before anything that follows from it is done. Only groups that are neither trained nor dropped
are held here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster import clock
from muster.journal import GroupRow, Journal
from muster.orchestrator.decisions.groups import Closed, Group
from muster.orchestrator.record import group_row
from muster.types import Batch


class GroupBook:
    """Journal rows of groups, written as groups are admitted and closed.

    Example: `book.admitted(admission.groups)`, later `book.closed(closed)`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: dict[str, GroupRow] = {}

    def reopen(self) -> None:
        """Take up what an earlier process left open or ready."""
        self._rows = {g.id: g for g in self._journal.rows(GroupRow, "state IN ('open', 'ready')")}

    def admitted(self, groups: Iterable[Group]) -> None:
        now = clock.now()
        rows = [group_row(g, now) for g in groups]
        self._rows.update({g.id: g for g in rows})
        self._journal.record(*rows)

    def closed(self, closed: Closed) -> None:
        """A group is ready, or was dropped."""
        now, row = clock.now(), self._rows[closed.group_id]
        if closed.ready is not None:
            row = replace(row, state="ready", ready_at=now, reused=list(closed.ready.reused))
            self._rows[row.id] = row
        else:
            row = replace(self._rows.pop(row.id), state="dropped", closed_at=now, drop_reason=closed.drop_reason)
        self._journal.record(row)

    def trained(self, batch: Batch, at: float) -> list[GroupRow]:
        """The rows to commit together with the step on `batch`, which ended `at`."""
        return [replace(self._rows.pop(g.id), state="trained", closed_at=at, step=batch.step) for g in batch.groups]
