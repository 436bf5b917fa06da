"""Timing model of a batching server: the duration of a step. Pure.

Law: a step's time is linear in what it computes, so that it can be fitted by least squares, and a stride of decode
steps, in which every context grows by one token a step, has a closed form that can be inverted.

    step = step_s                    read the weights once, launch the kernels
         + row_s      · D            requests that decode one token each
         + context_s  · C            tokens of context whose keys and values these read
         + prefill_s  · p            prompt tokens computed beside them
         + pair_s     · Σ p·(s+p/2)  their attention to what lies before them (s: where each chunk starts)

The sum is pessimistic where decoding (bound by memory) and prefill (bound by arithmetic) overlap, and optimistic
where a batch is so large that its matrix products are bound by arithmetic too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

EPSILON_S = 1e-9
"""A step that ends within a nanosecond of `now` has ended: floats of large clocks are no finer."""


class EngineTiming(BaseModel):
    """The five constants of the law above, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_s: float = Field(gt=0, description="every step: weights read, kernels launched")
    row_s: float = Field(default=0.0, ge=0, description="more for each request that decodes in the step")
    context_s: float = Field(default=0.0, ge=0, description="more for each token of their contexts")
    prefill_s: float = Field(gt=0, description="more for each prompt token computed in the step")
    pair_s: float = Field(default=0.0, ge=0, description="more for each pair of a prompt token and one before it")

    def decode_s(self, steps: int, rows: int, context: int) -> float:
        """Seconds of `steps` decode steps of `rows` requests whose contexts sum to `context` at the start."""
        first = self.step_s + self.row_s * rows + self.context_s * context
        return steps * first + self.context_s * rows * steps * (steps - 1) / 2

    def chunk_s(self, tokens: int, pairs: float) -> float:
        """Seconds that prompt tokens add to a step."""
        return self.prefill_s * tokens + self.pair_s * pairs

    def decode_steps(self, elapsed_s: float, rows: int, context: int) -> int:
        """Number of whole steps of such a stride that end within `elapsed_s`: `decode_s` inverted."""
        if elapsed_s < 0:
            return 0
        slope = self.context_s * rows / 2
        first = self.step_s + self.row_s * rows + self.context_s * context - slope
        root = math.sqrt(first * first + 4 * slope * elapsed_s)
        steps = int(2 * elapsed_s / (first + root))
        while self.decode_s(steps + 1, rows, context) <= elapsed_s + EPSILON_S:
            steps += 1
        return steps

    def prompt_s(self, tokens: int, chunk: int) -> float:
        """Seconds to compute one prompt alone, `chunk` tokens a step."""
        steps = math.ceil(tokens / chunk)
        return steps * self.step_s + self.chunk_s(tokens, pairs_of(0, tokens))


@dataclass(slots=True)
class Work:
    """Work that an engine did; each count is the factor of one constant of `EngineTiming`."""

    steps: int = 0
    rows: int = 0
    context: int = 0
    prefill: int = 0
    pairs: float = 0.0

    def add_decode(self, steps: int, rows: int, context: int) -> None:
        self.rows += steps * rows
        self.context += steps * context + rows * steps * (steps - 1) // 2

    def seconds(self, timing: EngineTiming) -> float:
        """Duration of this work under `timing`."""
        chunk_s = timing.chunk_s(self.prefill, self.pairs)
        return timing.step_s * self.steps + timing.row_s * self.rows + timing.context_s * self.context + chunk_s


def pairs_of(start: int, tokens: int) -> float:
    """Pairs of a prompt token and one before it, for a chunk of `tokens` that begins at `start`."""
    return tokens * (start + tokens / 2)
