"""What the live view knows of the past: read from the journal piece by piece, each row once.

Law: a refresh costs what is new, not what has happened; a batch is decomposed once. Reads that have no index to
follow (outcomes, evaluations) are done at most every `SLOW_S` seconds.

    refresh(journal, now, devices) ─new steps, metrics, batches, trajectories, device intervals─► History
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from muster.journal import (
    BatchRow,
    DeviceRow,
    GroupRow,
    Journal,
    LaunchRow,
    MetricRow,
    SpanRow,
    StepRow,
    TrajectoryRow,
)
from muster.observe.critical_path import BatchTime, batch_time, deciding_group
from muster.observe.intervals import Piece, flatten, totals
from muster.types import DeviceState, Evaluation, Verdict

SLOW_S = 2.0
WINDOW_S = 60.0
BATCHES = 8
SERIES = ("reward", "lag_max", "lag_mean", "groups_no_gradient")


class History:
    """Example: `history.refresh(journal, clock.now(), ("engine0", "trainer"))`, then read its attributes."""

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[int, float]]] = {name: [] for name in SERIES}
        self.batches: deque[BatchTime] = deque(maxlen=BATCHES)
        self.last_step: StepRow | None = None
        self.outcomes: Counter[tuple[Verdict, str]] = Counter()  # training trajectories
        self.first_evaluation: Evaluation | None = None
        self.last_evaluation: Evaluation | None = None
        self._intervals: dict[str, deque[DeviceRow]] = {}
        self._batch_seen = -1
        self._ended_seen = float("-inf")
        self._trajectories_seen: set[str] = set()
        self._slow_at = float("-inf")

    def refresh(self, journal: Journal, now: float, devices: Iterable[str]) -> None:
        """Take in what was recorded since the last call."""
        self._read_steps(journal)
        self._read_batches(journal)
        for device in devices:
            self._read_device(journal, device, now)
        if now - self._slow_at >= SLOW_S:
            self._slow_at = now
            self._read_outcomes(journal)
            self._read_evaluations(journal)

    def device_shares(self, device: str, now: float, present: DeviceState | None = None) -> dict[DeviceState, float]:
        """Share of each state over the last `WINDOW_S` seconds.

        A device that writes a state down only when it leaves it is in `present` since its last row.
        """
        known = [Piece(r.start, r.end, DeviceState(r.state)) for r in self._intervals.get(device, ())]
        if known and present:
            known.append(Piece(known[-1].end, now, present))
        if not known:
            return {}
        start, end = max(now - WINDOW_S, known[0].start), known[-1].end
        pieces = flatten(known, start, end, DeviceState.NO_WORK)
        return {state: seconds / (end - start) for state, seconds in totals(pieces).items()}

    def _read_steps(self, journal: Journal) -> None:
        after = self.last_step.step if self.last_step else -1
        for row in journal.rows(StepRow, "step > ?", after):
            self.last_step = row
        for name, series in self.series.items():
            after = series[-1][0] if series else -1
            series += [(m.step, m.value) for m in journal.rows(MetricRow, "name = ? AND step > ?", name, after)]

    def _read_batches(self, journal: Journal) -> None:
        """Batches whose step was made: before that, a resume may still take one apart."""
        done = self.last_step.step if self.last_step else -1
        new = journal.rows(BatchRow, "step > ? AND step <= ?", self._batch_seen, done)
        for batch in new[-BATCHES:]:
            self.batches.append(read_batch_time(journal, batch))
        self._batch_seen = done

    def _read_device(self, journal: Journal, device: str, now: float) -> None:
        rows = self._intervals.setdefault(device, deque())
        after = rows[-1].start if rows else now - WINDOW_S
        rows += journal.rows(DeviceRow, "device = ? AND start > ?", device, after)
        while rows and rows[0].end < now - WINDOW_S:
            rows.popleft()

    def _read_outcomes(self, journal: Journal) -> None:
        """Rows may be committed a little out of the order of their ends; ids keep them from counting twice."""
        since = self._ended_seen - 10 * SLOW_S
        for t in journal.rows(TrajectoryRow, "purpose = 'train' AND ended > ?", since):
            if t.id not in self._trajectories_seen:
                self._trajectories_seen.add(t.id)
                self.outcomes[Verdict(t.verdict), t.cause] += 1
                self._ended_seen = max(self._ended_seen, t.ended)

    def _read_evaluations(self, journal: Journal) -> None:
        taken = journal.evaluations()
        if taken:
            self.first_evaluation, self.last_evaluation = taken[0], taken[-1]


def read_batch_time(journal: Journal, batch: BatchRow) -> BatchTime:
    """Decompose one batch, reading only the rows that its critical path needs."""
    marks = ", ".join("?" * len(batch.groups))
    groups = journal.rows(GroupRow, f"id IN ({marks})", *batch.groups)
    groups += journal.rows(GroupRow, "state = 'dropped' AND closed_at BETWEEN ? AND ?", batch.opened_at, batch.ready_at)
    deciding = deciding_group(batch, groups)
    if deciding is None:
        return batch_time(batch, (), {}, (), {})
    trajectories = journal.rows(TrajectoryRow, "group_id = ?", deciding.id)
    launches = {x.id: x for x in journal.rows(LaunchRow, "group_id = ?", deciding.id)}
    spans = {t.id: journal.rows(SpanRow, "owner = ?", t.id) for t in trajectories}
    return batch_time(batch, groups, launches, trajectories, spans)
