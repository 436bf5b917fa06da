"""The device ledger: each engine replica and trainer rank in exactly one state at each instant.

Law: pure; within a session every device is covered from its start to its end. Engines report `idle`; it is split
here, by exact interval algebra, into `env_wait` (some live trajectory was in a sandbox or with a verifier at that
instant) and `no_work`. What a device did not report is said to be `down` (engine) or `no_work` (trainer, or a gap
too short to be an outage). A trainer writes a state down when it leaves it; of a session that never ended, its last
is taken to be the one that follows in its cycle.

    device rows ─flatten per session─► pieces ─idle ∩ environments busy─► env_wait | no_work
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.journal import DeviceRow, LaunchRow, SpanRow
from muster.observe.intervals import Interval, Labelled, flatten, overlap_s, totals, union
from muster.observe.record import Record, RunSession
from muster.types import DeviceState, Stage

TRAINER = "trainer"
ENVIRONMENT_STAGES = frozenset(
    {
        Stage.SANDBOX_QUEUE,
        Stage.SANDBOX_START,
        Stage.TOOL,
        Stage.VERIFIER_QUEUE,
        Stage.VERIFY,
    }
)
ENGINE_STAGES = frozenset({Stage.PREFILL, Stage.RECOMPUTE, Stage.DECODE})
BUSY_STATES = frozenset({DeviceState.PREFILL, DeviceState.RECOMPUTE, DeviceState.DECODE})
OUTAGE_S = 5.0  # engines are polled every second or so: a shorter silence is the polling, not an outage

NEXT = {DeviceState.BATCH_WAIT: DeviceState.TRAIN, DeviceState.TRAIN: DeviceState.PUBLISH}

Strip = tuple[Labelled[DeviceState], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLedger:
    """Device ledger. `strips`: device -> pieces that tile every session. `mean_running`: requests in a busy engine."""

    strips: Mapping[str, Strip]
    mean_running: float | None

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(d for d in self.strips if d != TRAINER)

    def seconds(self, *devices: str) -> dict[DeviceState, float]:
        """Device-seconds by state, summed over `devices` (all when none is named)."""
        chosen = devices or tuple(self.strips)
        return totals(p for d in chosen for p in self.strips.get(d, ()))

    def share(self, state: DeviceState, *devices: str) -> float:
        """Share of the devices' time in `state`; 0 when there is none."""
        seconds = self.seconds(*devices)
        whole = sum(seconds.values())
        return seconds.get(state, 0.0) / whole if whole > 0 else 0.0


def device_ledger(record: Record) -> DeviceLedger:
    """The ledger of a whole run."""
    environments = _environments_busy(record)
    by_device: dict[str, list[DeviceRow]] = {}
    for row in record.devices:
        by_device.setdefault(row.device, []).append(row)
    strips: dict[str, Strip] = {}
    for device, rows in sorted(by_device.items(), key=lambda item: (item[0] == TRAINER, item[0])):
        pieces = [piece for session in record.sessions for piece in _strip(device, rows, session)]
        strips[device] = _split_idle(pieces, environments)
    return DeviceLedger(strips=strips, mean_running=_mean_running(record, strips))


def idle_while(ledger: DeviceLedger, states: frozenset[DeviceState]) -> float:
    """Engine-seconds of `no_work` while the trainer was in one of `states`, as a mean over the engines."""
    trainer = union((p.start, p.end) for p in ledger.strips.get(TRAINER, ()) if p.label in states)
    engines = ledger.engines
    idle = (
        overlap_s(union((p.start, p.end) for p in ledger.strips[e] if p.label is DeviceState.NO_WORK), trainer)
        for e in engines
    )
    return sum(idle) / len(engines) if engines else 0.0


def _strip(device: str, rows: Sequence[DeviceRow], session: RunSession) -> Strip:
    reported = [Labelled(r.start, r.end, DeviceState(r.state)) for r in rows if r.start >= session.start]
    if device == TRAINER:
        last = max(reported, key=lambda p: p.end, default=None)
        if last and not session.complete and last.end < session.end:
            reported.append(Labelled(last.end, session.end, NEXT.get(last.label, DeviceState.BATCH_WAIT)))
        return flatten(reported, session.start, session.end, DeviceState.NO_WORK)
    pieces = flatten(reported, session.start, session.end, DeviceState.DOWN)
    named_down = union((p.start, p.end) for p in reported if p.label is DeviceState.DOWN)
    return tuple(
        Labelled(p.start, p.end, DeviceState.NO_WORK)
        if p.label is DeviceState.DOWN and p.duration_s < OUTAGE_S and not overlap_s(named_down, [(p.start, p.end)])
        else p
        for p in pieces
    )


def _split_idle(pieces: Iterable[Labelled[DeviceState]], environments: Sequence[Interval]) -> Strip:
    """Replace idle time by env_wait where environments were busy and by no_work elsewhere. One linear sweep."""
    result: list[Labelled[DeviceState]] = []
    at = 0
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.label is not DeviceState.IDLE:
            result.append(piece)
            continue
        while at < len(environments) and environments[at][1] <= piece.start:
            at += 1
        busy: list[Labelled[DeviceState]] = []
        ahead = at
        while ahead < len(environments) and environments[ahead][0] < piece.end:
            busy.append(Labelled(*environments[ahead], DeviceState.ENV_WAIT))
            ahead += 1
        result += flatten(busy, piece.start, piece.end, DeviceState.NO_WORK)
    return _merged(result)


def _merged(pieces: Iterable[Labelled[DeviceState]]) -> Strip:
    merged: list[Labelled[DeviceState]] = []
    for piece in pieces:
        if merged and merged[-1].label is piece.label and merged[-1].end == piece.start:
            merged[-1] = Labelled(merged[-1].start, piece.end, piece.label)
        else:
            merged.append(piece)
    return tuple(merged)


def _environments_busy(record: Record) -> list[Interval]:
    """Intervals in which at least one live trajectory was in a sandbox or with a verifier.

    A trajectory's spans are known when it ends. One that has not ended counts from its launch on: while an engine
    idles, it is not in the engine.
    """
    known = ((s.start, s.end) for spans in record.spans.values() for s in spans if s.stage in ENVIRONMENT_STAGES)
    return union([*known, *_unended(record)])


def _unended(record: Record) -> list[Interval]:
    ended = record.trajectories.keys() | record.drops.keys()
    alive = [launch for launch in record.launches.values() if launch.id not in ended]
    return [(launch.at, _session_end(launch, record.sessions)) for launch in alive]


def _session_end(launch: LaunchRow, sessions: Sequence[RunSession]) -> float:
    ends = [s.end for s in sessions if s.start <= launch.at]
    return ends[-1] if ends else launch.at


def _mean_running(record: Record, strips: Mapping[str, Strip]) -> float | None:
    busy_s = sum(p.duration_s for d, s in strips.items() if d != TRAINER for p in s if p.label in BUSY_STATES)
    return _engine_s(record.spans) / busy_s if busy_s > 0 else None


def _engine_s(spans: Mapping[str, Sequence[SpanRow]]) -> float:
    return sum(s.end - s.start for own in spans.values() for s in own if s.stage in ENGINE_STAGES)
