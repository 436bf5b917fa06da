"""Spans of a trajectory's time: every instant between its first and last event has one stage.

recorder.enter(Stage.TOOL) … recorder.enter(Stage.DECODE) … recorder.finish() ─► spans, gapless
"""

from __future__ import annotations

from muster import clock
from muster.types import Completion, Span, Stage


class SpanRecorder:
    """Records one owner's stages. `current` is what the live view counts."""

    def __init__(self, owner: str, *, stage: Stage = Stage.SANDBOX_START) -> None:
        self.owner = owner
        self.current = stage
        self.started = self._since = clock.now()
        self._spans: list[Span] = []
        self.sampled_tokens = 0  # in the requests that have come back

    def enter(self, stage: Stage, *, at: float | None = None) -> None:
        """From now (or from `at`, not before the last change) on the owner is in `stage`."""
        end = max(self._since, clock.now() if at is None else at)
        if end > self._since:
            self._spans.append(Span(owner=self.owner, stage=self.current, start=self._since, end=end))
        self.current, self._since = stage, end

    def completed(self, completion: Completion, *, next_stage: Stage) -> None:
        """Split the request that just ended by what the engine says of it; what it does not explain is queue."""
        self.sampled_tokens += len(completion.tokens_T)
        now = clock.now()
        total = now - self._since
        parts = [
            (Stage.PUBLICATION_PAUSE, completion.paused_s),
            (Stage.RECOMPUTE, completion.recompute_s),
            (Stage.PREFILL, completion.prefill_s),
            (Stage.DECODE, completion.decode_s),
        ]
        inside = sum(duration for _, duration in parts)
        scale = min(1.0, total / inside) if inside > 0 else 0.0
        at = self._since + max(0.0, total - inside * scale)
        for stage, duration in parts:
            if duration > 0:
                self.enter(stage, at=at)
                at += duration * scale
        self.enter(next_stage, at=now)

    def finish(self) -> tuple[Span, ...]:
        self.enter(self.current)
        return tuple(self._spans)
