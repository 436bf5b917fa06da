"""`muster bench control`: what a live trajectory costs the control plane, and whether it costs more among many.

    for 100, 1,000, 10,000 live: a process of its own ─► ControlWorld on the virtual clock ─► CPU time, samples, memory

Law: the virtual clock never waits, so that CPU time is what the work costs, and a turn is a turn however many are live.
Two parts are the emulation's and do not run in this process in production: engines, and what stands for sandboxes and
trainer (they share the event loop, whose time is counted in full). Not in here: HTTP to the engines, pipes to
sandboxes, and a real tokenizer, for which characters stand.

`sustained` is the number of turns that one core could drive each second, without the emulation. A turn of a terminal
agent takes about 20 s (a command 18 s on average, 220 tokens), so that 10,000 live trajectories make 500 turns a
second.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from muster import clock
from muster.lab.bench.control.cpu_parts import CpuParts
from muster.lab.bench.control.world import ControlWorld
from muster.lab.result import BenchResult, Target
from muster.lab.workers import workers
from muster.orchestrator.garbage import seldom_collected

LIVE = (100, 1_000, 10_000)
MEASURED_TURNS = 8_000
"""At least so many are measured at each size; small worlds are repeated."""
TURN_S = 20.0

ENGINES, WORLD = "engines", "world"
EMULATED = (ENGINES, WORLD)
PARTS: Mapping[str, str] = {
    "clock": "event loop",
    "lab/emulated/": ENGINES,
    "lab/": WORLD,
    "engine/": "router",
    "sandbox/": "pool",
    "journal/": "journal",
    "rollout/": "rollout",
    "verifier/": "rollout",
    "types/": "rollout",
    "orchestrator/loops": "loops",
    "orchestrator/dispatch": "loops",
    "orchestrator/record": "loops",
    "orchestrator/status": "loops",
    "orchestrator/watch": "loops",
    "orchestrator/delivery": "loops",
    "orchestrator/device": "loops",
    "publish/": "loops",
    "metrics": "loops",
    "orchestrator/": "scheduler",
    "tasks/": "scheduler",
}
"""Module -> part, the first that fits; `clock` alone is left when nothing but the event loop runs."""
NAMES = tuple(dict.fromkeys(PARTS.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One size. `us`: CPU microseconds a turn by part; `memory_bytes`: what the process grew by, at its peak."""

    live: int
    most_live: int
    turns: int
    us: Mapping[str, float]
    memory_bytes: int

    @property
    def control_us(self) -> float:
        """Without the emulation."""
        return sum(us for part, us in self.us.items() if part not in EMULATED)

    @property
    def sustained(self) -> float:
        """Turns a second on one core."""
        return 1e6 / self.control_us


def run_control_bench(say: Callable[[str], object], *, live: Sequence[int] = LIVE, seed: int = 0) -> BenchResult:
    """One size after the other, each in a fresh process."""
    costs: list[Cost] = []
    for count in sorted(live):
        with workers(1) as pool:
            costs.append(pool.submit(cost, count, seed).result())
        say(f"{count} live: {costs[-1].turns} turns, {sum(costs[-1].us.values()):.0f} us each")
    first, last = costs[0], costs[-1]
    return BenchResult(
        name="control",
        rows=[_row(c) for c in costs],
        targets=[
            Target(name="control_live", value=last.most_live, operator=">=", threshold=10_000),
            Target(name="control_growth", value=last.control_us / first.control_us, operator="<=", threshold=2.0),
        ],
        notes={
            "unit": "CPU microseconds a turn",
            "emulation": EMULATED,
            "seed": seed,
            "turns_per_s_one_core": last.sustained,
            "least_turn_s_at_most_live": last.live / last.sustained,
            "turn_s_of_terminal_agents": TURN_S,
            "parts": {str(c.live): dict(c.us) for c in costs},
        },
    )


def cost(live: int, seed: int, measured_turns: int = MEASURED_TURNS) -> Cost:
    """Measure one size, in this process."""
    turns = most_live = 0
    cpu_s = 0.0
    before = _peak_bytes()
    with (
        seldom_collected(),  # as in a run
        CpuParts(PARTS, rest="event loop") as cpu,
        TemporaryDirectory(prefix="muster-control-") as directory,
    ):
        while turns < measured_turns:
            place = Path(directory) / f"{turns}"
            place.mkdir()
            world = ControlWorld(live, place, seed=seed + turns)
            began = clock.cpu_s()
            clock.run_virtual(world.run())
            cpu_s += clock.cpu_s() - began
            turns += world.turns
            most_live = max(most_live, world.most_live)
    us = {part: cpu.share(part) * cpu_s / turns * 1e6 for part in NAMES}
    return Cost(live=live, most_live=most_live, turns=turns, us=us, memory_bytes=_peak_bytes() - before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _row(cost: Cost) -> dict[str, str | int | float]:
    return {
        "live": cost.live,
        "reached": cost.most_live,
        "turns": cost.turns,
        **{part: round(cost.us[part], 1) for part in NAMES if part not in EMULATED},
        "control plane": round(cost.control_us, 1),
        **{f"({part})": round(cost.us[part], 1) for part in EMULATED},
        "MiB": round(cost.memory_bytes / 2**20),
        "KiB a live": round(cost.memory_bytes / 1024 / cost.live, 1),
        "sustained": round(cost.sustained),
    }
