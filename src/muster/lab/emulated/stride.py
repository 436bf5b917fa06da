"""A run of steps of the same batch: when it ends, where it may be cut, and what the device does meanwhile. Pure.

Law: a stride that computes prompts is one step. A step that began is finished: a stride is only ever cut at the end of
the step that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from muster.engine.phases import Phase
from muster.engine.timing import EPSILON_S, EngineTiming, pairs_of
from muster.lab.emulated.batch import Chunk
from muster.types import DeviceState


@dataclass(slots=True)
class Stride:
    """Stride: `steps` steps of `rows` decoding requests, whose contexts sum to `context` at first, and of `chunks`."""

    timing: EngineTiming
    start: float
    steps: int
    rows: int
    context: int
    chunks: list[Chunk]
    pairs: float
    due: float

    @classmethod
    def of(cls, timing: EngineTiming, start: float, steps: int, rows: int, context: int, chunks: list[Chunk]) -> Stride:
        pairs = sum(pairs_of(request.filled, size) for request, size in chunks)
        chunk_s = timing.chunk_s(sum(size for _, size in chunks), pairs)
        due = start + timing.decode_s(steps, rows, context) + chunk_s
        return cls(timing, start, steps, rows, context, chunks, pairs, due)

    def steps_by(self, now: float) -> int:
        """Steps that have ended by `now`."""
        if self.chunks:
            return self.steps if now >= self.due else 0
        return min(self.steps, self.timing.decode_steps(now - self.start, self.rows, self.context))

    def cut(self, now: float) -> None:
        """End with the step that runs at `now`."""
        if self.steps == 1 or now >= self.due:
            return
        elapsed_s = now - self.start
        steps = self.steps_by(now)
        if not steps or self.timing.decode_s(steps, self.rows, self.context) < elapsed_s - EPSILON_S:
            steps += 1
        if steps < self.steps:
            self.steps = steps
            self.due = self.start + self.timing.decode_s(steps, self.rows, self.context)

    def states(self, before: DeviceState) -> list[tuple[DeviceState, float]]:
        """States of the device, and from when on; split between what the step computes, by time and tokens.

        The state `before` comes first if it is among them: a row of mixed steps then changes it once a step.
        """
        if not self.chunks:
            return [(DeviceState.DECODE, self.start)]
        shares_s = self._shares_s()
        states = sorted(shares_s, key=lambda state: state != before)
        entered = [(states[0], self.start)]
        for earlier, state in pairwise(states):
            entered.append((state, entered[-1][1] + shares_s[earlier]))
        return entered

    def _shares_s(self) -> Mapping[DeviceState, float]:
        decode_s = self.timing.decode_s(1, self.rows, self.context) if self.rows else 0.0
        prompts_s = self.due - self.start - decode_s
        total = sum(size for _, size in self.chunks)
        again = sum(size for request, size in self.chunks if request.time.phase is Phase.RECOMPUTE)
        shares_s = {
            DeviceState.DECODE: decode_s,
            DeviceState.PREFILL: prompts_s * (total - again) / total,
            DeviceState.RECOMPUTE: prompts_s * again / total,
        }
        return {state: share_s for state, share_s in shares_s.items() if share_s > 0}
