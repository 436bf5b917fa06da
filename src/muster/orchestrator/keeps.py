"""The keep points of a run: one for each sibling that is under way, in the journal; what they point to, at the backend.

    attempt ─commit─► row (the one before is given back) ─► lost to infrastructure, or this process killed or stopped:
                                                            the next launch of the sibling begins there
                                                        ─► graded, cancelled, group ended: given back

Law: attribution first. A keep point serves only what infrastructure lost and what died with this process; how a model
ended its own attempt stands. A row is written when its state is there, and deleted when the state is gone, so that a
process killed at any instant leaves nothing that the next one cannot find: a row that nobody needs shows by what the
journal says of its group and sibling, and its state is given back. Only a state whose row was not written yet is lost
sight of; the backend removes it when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from muster import clock
from muster.journal import EventRow, GroupRow, Journal, KeepRow, TrajectoryRow
from muster.sandbox.port import SandboxBackend
from muster.types import Kept, Launch, Trajectory, Verdict

MAX_LOST = 2
"""Continuations from one keep point that may be lost before it is given up: the point itself may be what is wrong."""

Fresh = Callable[[int], bool]
"""Whether tokens of that version may still be trained."""


class Keeps:
    """Implements `rollout.keeping.Keeper`.

    every_s: the model's own time from one keep point to the next; 0: none are made, those of before are still used.

    Example: `keeps = Keeps(journal, pool.backend, 30.0)`; `Rollout(..., keeper=keeps)`; `Dispatcher(..., keeps=keeps)`
    """

    def __init__(self, journal: Journal, backend: SandboxBackend, every_s: float) -> None:
        self._journal = journal
        self._backend = backend
        self._every_s = every_s
        self._keeping: set[str] = set()  # launches that may be continued
        self._points: dict[tuple[str, int], None] = {}  # siblings that have one
        self._unneeded: list[KeepRow] = []  # to be given back
        for row in journal.rows(KeepRow):
            if _needed(journal, row):
                self._points[row.group_id, row.sibling] = None
            else:
                self._unneeded.append(row)

    # --- for the attempts

    def due(self, launch: Launch, own_s: float) -> bool:
        return 0 < self._every_s <= own_s and launch.id in self._keeping

    async def commit(self, launch: Launch, kept: Kept) -> None:
        before = self._row(launch.group_id, launch.sibling)
        self._journal.record_kept(
            launch,
            kept,
            own_tokens=kept.sampled_tokens - (launch.kept.sampled_tokens if launch.kept else 0),
            previous=before.snapshot if before else None,
            at=clock.now(),
        )
        self._points[launch.group_id, launch.sibling] = None
        if before is not None:
            await self._give_back(before)

    # --- for the dispatcher

    async def begin(self, launch: Launch, fresh: Fresh) -> Launch:
        """The launch as it is to be run: from its sibling's keep point, if there is one that may be used."""
        self._keeping.add(launch.id)
        row = self._row(launch.group_id, launch.sibling)
        if row is None:
            return launch
        kept = row.kept()
        if row.task_digest != launch.task.digest:
            return self._relaunched(launch, row, "its task has changed")
        if not fresh(kept.oldest_version):
            return self._relaunched(launch, row, "its keep point is too stale for the next batch")
        if await self._backend.restore(kept.snapshot) is None:
            return self._relaunched(launch, row, "its snapshot is gone")
        return replace(launch, kept=kept)

    def ended(self, launch: Launch, trajectory: Trajectory) -> None:
        """A committed ending. Only what infrastructure lost is continued, and not for ever from one point."""
        self._keeping.discard(launch.id)
        row = self._row(launch.group_id, launch.sibling)
        if row is None:
            return
        lost = row.lost + (row.launch != launch.id)
        if trajectory.outcome.verdict is not Verdict.INFRA or lost >= MAX_LOST:
            self._drop(row)
        elif lost > row.lost:
            self._journal.record(replace(row, lost=lost))

    def cancelled(self, launch: Launch, *, given_up: bool) -> None:
        """End a sibling without an outcome. `given_up`: its group is, so nobody will continue it."""
        self._keeping.discard(launch.id)
        row = self._row(launch.group_id, launch.sibling) if given_up else None
        if row is not None:
            self._drop(row)

    def forget(self, group_id: str) -> None:
        """The group has ended: none of its siblings is launched again."""
        for group, sibling in [point for point in self._points if point[0] == group_id]:
            row = self._row(group, sibling)
            assert row is not None, "a point has its row"
            self._drop(row)

    async def tidy(self) -> None:
        """Give back what is not needed any more."""
        while self._unneeded:
            row = self._unneeded.pop()  # attempts that end together tidy at once: each takes its own
            try:
                await self._give_back(row)
            except BaseException:
                self._unneeded.append(row)
                raise
            self._journal.forget(
                KeepRow, "group_id = ? AND sibling = ? AND snapshot = ?", row.group_id, row.sibling, row.snapshot
            )

    async def finish(self) -> None:
        """The run is done: nothing will be continued."""
        for group_id in dict.fromkeys(group for group, _ in self._points):
            self.forget(group_id)
        await self.tidy()

    # --- inside

    def _row(self, group_id: str, sibling: int) -> KeepRow | None:
        if (group_id, sibling) not in self._points:
            return None
        rows = self._journal.rows(KeepRow, "group_id = ? AND sibling = ?", group_id, sibling)
        return rows[0] if rows else None

    def _drop(self, row: KeepRow) -> None:
        self._points.pop((row.group_id, row.sibling), None)
        self._unneeded.append(row)

    def _relaunched(self, launch: Launch, row: KeepRow, reason: str) -> Launch:
        data = {"launch": row.launch, "snapshot": row.snapshot, "own_s": row.own_s}
        message = f"{launch.id} begins at the beginning: {reason}"
        self._journal.record(EventRow(at=clock.now(), kind="relaunched", message=message, data=data))
        self._drop(row)
        return launch

    async def _give_back(self, row: KeepRow) -> None:
        """Give back what it points to, and what a process that was killed just then did not come to give back."""
        for snapshot in (row.previous, row.snapshot):
            state = await self._backend.restore(snapshot) if snapshot is not None else None
            if state is not None:
                await self._backend.discard(state)


def _needed(journal: Journal, row: KeepRow) -> bool:
    """Whether the sibling may still be launched: its group is open, and it has no ending of its own doing."""
    group = journal.rows(GroupRow, "id = ?", row.group_id)
    ended = journal.count(
        TrajectoryRow, "group_id = ? AND sibling = ? AND verdict != ?", row.group_id, row.sibling, Verdict.INFRA.value
    )
    return bool(group) and group[0].state == "open" and not ended
