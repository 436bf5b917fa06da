"""Checks an emulated core's accounting from scratch, and drives one without a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from muster.engine.config import EmulatedEngineConfig
from muster.engine.embedded.prefix_cache import distinct_tokens
from muster.engine.timing import EngineTiming
from muster.lab.emulated.core import EmulatedCore
from muster.lab.faults import INITIAL
from muster.types import Completion, Ints, Sampling, Session

TIMING = EngineTiming(step_s=0.02, row_s=0.001, context_s=1e-5, prefill_s=0.0005, pair_s=1e-7)


def config(**changes: Any) -> EmulatedEngineConfig:
    values: dict[str, Any] = {"timing": TIMING, "vocabulary": 64, "max_model_len": 128, "max_step_tokens": 64}
    return EmulatedEngineConfig.model_validate(values | changes)


class Driven:
    """A core, stepped by hand. `completions` by request id, with when they came."""

    def __init__(self, settings: EmulatedEngineConfig, *, single_steps: bool = False, policy: Any = None) -> None:
        self.core = EmulatedCore(settings, name="r", version=INITIAL, now=0.0, policy=policy)
        self.completions: dict[str, Completion] = {}
        self.ended_at: dict[str, float] = {}
        self._single_steps = single_steps

    def submit(
        self, name: str, tokens: Ints, max_tokens: int, *, session: str = "", at: float = 0.0, **more: Any
    ) -> None:
        def done(completion: Completion) -> None:
            self.completions[name] = completion
            self.ended_at[name] = self.core.now

        sampling = Sampling(max_tokens=max_tokens, **more)
        self.core.check(tokens)
        self.core.submit(name, tokens, sampling, Session(id=session or name), done, at)

    def run_until(self, at: float) -> None:
        """Let strides pass; the last one is cut at the first step's end at or after `at`."""
        while self.core.begin(self.core.now):
            assert self.core.due is not None
            if self._single_steps:
                self.core.cut(self.core.now)
            reached = self.core.due >= at
            if reached:
                self.core.cut(at)
            self.core.finish()
            balanced(self.core)
            if reached:
                return
        if at < float("inf"):
            self.core.now = max(self.core.now, at)

    def run(self) -> None:
        self.run_until(float("inf"))


def nodes(core: EmulatedCore) -> Iterator[Any]:
    stack = list(core._batch.cache._roots.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        if node.parent is not None:
            yield node


def balanced(core: EmulatedCore) -> None:
    """Everything that the core keeps as running sums is what counting gives, and fits the memory."""
    block = core.config.block_tokens
    held = list(nodes(core))
    assert core._batch.cache.used == sum(len(n.run) for n in held)
    assert core._batch.cache.idle == sum(len(n.run) for n in held if not n.locks)
    assert all(len(n.run) % block == 0 and len(n.run) for n in held)
    assert all(n.children[k].run.start(block) == k for n in held for k in n.children)
    assert all(n.ready == len(n.run) or (n.owner is not None and not n.children and n.locks == 1) for n in held)
    own = 0
    users: dict[int, int] = {}
    for request in core._batch.running:
        if request.decoding:
            core._batch.decoding.settle(request)
        length = request.length if request.decoding else request.length + 1
        own += -(-length // block) - request.path // block
        node, depth = request.node, 0
        while node is not None and node.parent is not None:
            users[id(node)] = users.get(id(node), 0) + 1
            depth += len(node.run)
            node = node.parent
        assert depth == request.path
    assert own == core._batch.own_blocks
    assert all(n.locks == users.get(id(n), 0) for n in held)
    assert own * block + core._batch.cache.used <= core.config.blocks * block
    computed = [r.sequence[: r.length - 1 if r.decoding else r.filled] for r in core._batch.running]
    assert distinct_tokens(computed) <= core._batch.computed_tokens() <= sum(map(len, computed))
    assert core._batch.computed_tokens() <= core._batch.used_tokens
    assert core._batch.decoding.context == sum(r.length for r in core._batch.running if r.decoding)


def prompt(length: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(3, 64, length).astype(np.int32)
