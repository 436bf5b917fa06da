"""History of a run for the live view: read from the journal piece by piece, each row once.

Law: a refresh costs what is new, not what has happened; a batch is decomposed once. Reads that have no index to
follow (outcomes, evaluations) are rare, and rarer as they grow slower: they never take more than `SLOW_SHARE`.

    refresh(journal, now, devices) ─new steps, metrics, batches, trajectories, device intervals─► History
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from muster import clock
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
from muster.types import DeviceState, Evaluation, Verdict

SLOW_S = 2.0  # between slow reads, at least
SLOW_SHARE = 0.003  # of one core
WINDOW_S = 60.0
BATCHES = 8
SERIES = ("reward", "lag_max", "lag_mean", "groups_no_gradient")


class History:
    """History of a run, kept up to date by each refresh.

    Example: `history.refresh(journal, clock.now(), ("engine0", "trainer"))`, then read its attributes.
    """

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[int, float]]] = {name: [] for name in SERIES}
        self.batches: deque[BatchTime] = deque(maxlen=BATCHES)
        self.last_step: StepRow | None = None
        self.new_steps: tuple[StepRow, ...] = ()  # that the last refresh brought
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
        if now >= self._slow_at:
            began = clock.cpu_s()
            self._read_outcomes(journal)
            self._read_evaluations(journal)
            self._slow_at = now + max(SLOW_S, (clock.cpu_s() - began) / SLOW_SHARE)

    def device_shares(self, device: str, now: float, present: DeviceState | None = None) -> dict[DeviceState, float]:
        """Share of each state over what is known of the last `WINDOW_S` seconds; intervals do not overlap.

        A device that writes a state down only when it leaves it is in `present` since its last row.
        """
        rows = self._intervals.get(device, ())
        seconds: dict[str, float] = {}
        for row in rows:
            inside = row.end - max(row.start, now - WINDOW_S)
            if inside > 0:
                seconds[row.state] = seconds.get(row.state, 0.0) + inside
        if rows and present and now > rows[-1].end:
            seconds[present] = seconds.get(present, 0.0) + min(now - rows[-1].end, WINDOW_S)
        whole = sum(seconds.values())
        return {DeviceState(state): x / whole for state, x in seconds.items()}

    def _read_steps(self, journal: Journal) -> None:
        after = self.last_step.step if self.last_step else -1
        self.new_steps = tuple(journal.rows(StepRow, "step > ?", after))
        self.last_step = self.new_steps[-1] if self.new_steps else self.last_step
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
