"""`muster bench routing --real`: the router's policies on real servers, small: hit rates by the servers' own counters.

    plan (turns, replies, observations, commands) ─► for each policy: Fleet ─► 2 servers ─► prompt and cached tokens

Law: one pair of servers for all policies; each policy plays the same plan with tokens of its own, so that it finds
nothing of the others in the caches. What could be reused at best follows from what was played: of a group's prompt all
but the first computation, and of each turn all but what it shows anew and the last sampled token, whose keys no engine
has yet; in whole blocks where the server caches blocks. A session leaves a server that is much slower than the other,
and computes its context again: on cores that others use as well, ours reuses less than where it never has a reason to
move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from muster import clock
from muster.engine.config import EngineConfig, Policy, RouterConfig, VllmConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.launching import launch
from muster.engine.port import EngineStatistics, Replica
from muster.lab.bench.routing.virtual import HIT_OF_BEST, OURS, POLICIES
from muster.lab.bench.servers import server_config
from muster.lab.result import BenchResult, Target, Value
from muster.model.config import LlamaConfig
from muster.model.weights import resolve
from muster.types import Ints, Sampling, Session

REPLICAS, GROUPS, GROUP_SIZE = 2, 4, 4
MAX_MODEL_LEN = 1024
PROMPT_TOKENS, REPLY_TOKENS, OBSERVATION_TOKENS = 160, 16, 48
VLLM_BLOCK_TOKENS = 32
"""Of its prefix cache here: with the CPU build's 128, a turn of 64 tokens would often add no block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """A plan under one policy. needed: tokens that must be computed with perfect reuse. imbalance: most sampled tokens
    of a server over the mean."""

    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    needed_tokens: int
    imbalance: float

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def best(self) -> float:
        return 1 - self.needed_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One session: seconds of the command after each reply but the last."""

    group: int
    tools_s: tuple[float, ...]


def engine_of(kind: str, *, python: str = "") -> EngineConfig:
    """Settings of the servers; as `servers.server_config`."""
    return server_config(
        kind,
        python=python,
        replicas=REPLICAS,
        streams=GROUPS * GROUP_SIZE,
        max_model_len=MAX_MODEL_LEN,
        vllm_block_tokens=VLLM_BLOCK_TOKENS,
    )


def run_real_routing_bench(
    say: Callable[[str], object], *, model: str, engine: EngineConfig, repetitions: int
) -> BenchResult:
    """Measure. Raises `ModelError` for a model that cannot be used, `EngineError` when a server fails."""
    found = clock.run(_all(say, model, engine, repetitions))
    ours = median(p.hit_rate / p.best for p in found[OURS])
    return BenchResult(
        name="routing-real",
        rows=[_row(policy, own) for policy, own in found.items()],
        targets=[Target(name="real_hit_of_best", value=ours, operator=">=", threshold=HIT_OF_BEST)],
        notes={
            "model": model,
            "engine": engine.kind,
            "replicas": engine.replicas,
            "sessions": GROUPS * GROUP_SIZE,
            "repetitions": repetitions,
        },
    )


async def _all(
    say: Callable[[str], object], model: str, engine: EngineConfig, repetitions: int
) -> dict[Policy, list[PolicyRun]]:
    folder = resolve(model)
    vocabulary = LlamaConfig.from_folder(folder).vocab_size
    found: dict[Policy, list[PolicyRun]] = {policy: [] for policy in POLICIES}
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as starts:
            starting = [
                starts.create_task(stack.enter_async_context(launch(engine, folder, f"engine{i}", index=i)))
                for i in range(engine.replicas)
            ]
        replicas = [started.result() for started in starting]
        for seed in range(repetitions):
            for number, policy in enumerate(POLICIES):
                tokens = np.random.default_rng((seed, number))
                place = RoutingSetup(replicas=replicas, vocabulary=vocabulary, block=_block(engine), rng=tokens)
                found[policy].append(await place.play(policy, plan(seed)))
                say(f"{policy}: hit rate {found[policy][-1].hit_rate:.3f} of at best {found[policy][-1].best:.3f}")
    return found


def plan(seed: int) -> list[Planned]:
    """Groups of 8 to 12 turns, siblings about as long as each other; commands of 0.1 s, some much longer."""
    rng = np.random.default_rng(seed)
    plans: list[Planned] = []
    for group in range(GROUPS):
        turns = int(rng.integers(9, 12))
        for _ in range(GROUP_SIZE):
            own = turns + int(rng.integers(-1, 2))
            tools_s = np.minimum(1.0, rng.lognormal(np.log(0.1), 1.0, own - 1))
            plans.append(Planned(group=group, tools_s=tuple(tools_s.tolist())))
    return plans


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSetup:
    replicas: Sequence[Replica]
    vocabulary: int
    block: int
    rng: np.random.Generator

    async def play(self, policy: Policy, plans: Sequence[Planned]) -> PolicyRun:
        fleet = Fleet(self.replicas, RouterConfig(policy=policy))
        prompts = [self._tokens(PROMPT_TOKENS) for _ in range(GROUPS)]
        shown = [[self._tokens(OBSERVATION_TOKENS) for _ in p.tools_s] for p in plans]
        before = [await r.statistics() for r in self.replicas]
        began = clock.now()
        async with asyncio.TaskGroup() as group:
            names = [f"{policy}{clock.now()}/{index}" for index in range(len(plans))]
            tasks = [
                group.create_task(_session(fleet, name, p, prompts[p.group], own))
                for name, p, own in zip(names, plans, shown, strict=True)
            ]
        duration_s = clock.now() - began
        after = [await r.statistics() for r in self.replicas]
        return _played(duration_s, before, after, needed_tokens([t.result() for t in tasks], plans, block=self.block))

    def _tokens(self, count: int) -> Ints:
        return self.rng.integers(3, self.vocabulary, count).astype(np.int32)


async def _session(
    fleet: Fleet, name: str, plan: Planned, prompt: Ints, shown: Sequence[Ints]
) -> list[tuple[int, int]]:
    """Play it; returns the length of each prompt and of its reply."""
    session = Session(id=name, group=f"{name.partition('/')[0]}/g{plan.group}")
    tokens, lengths = prompt, list[tuple[int, int]]()
    try:
        for turn in range(len(plan.tools_s) + 1):
            sampling = Sampling(max_tokens=REPLY_TOKENS, seed=turn)
            reply = await fleet.generate(tokens, sampling, session)
            lengths.append((len(tokens), len(reply.tokens_T)))
            if turn < len(plan.tools_s):
                tokens = np.concatenate([tokens, reply.tokens_T, shown[turn]])
                await clock.sleep(plan.tools_s[turn])
    finally:
        fleet.release(session)
    return lengths


def needed_tokens(lengths: Sequence[Sequence[tuple[int, int]]], plans: Sequence[Planned], *, block: int) -> int:
    """Prompt tokens that perfect reuse computes, over all sessions. lengths: of prompts and replies, as played.

    Example: one session of prompts 10 and 20 with replies of 4, cached token by token: 10 + (20 - 13) = 17.
    """
    needed, begun = 0, list[int]()
    for own, p in zip(lengths, plans, strict=True):
        known = own[0][0] if p.group in begun else 0  # its group's prompt, or what its session fed before
        begun.append(p.group)
        for prompt, reply in own:
            needed += prompt - min(known, prompt - 1) // block * block
            known = prompt + reply - 1
    return needed


def _played(
    duration_s: float, before: Sequence[EngineStatistics], after: Sequence[EngineStatistics], needed: int
) -> PolicyRun:
    pairs = list(zip(before, after, strict=True))
    sampled = [b.generated_tokens - a.generated_tokens for a, b in pairs]
    return PolicyRun(
        duration_s=duration_s,
        prompt_tokens=sum(b.prompt_tokens - a.prompt_tokens for a, b in pairs),
        cached_tokens=sum(b.cached_tokens - a.cached_tokens for a, b in pairs),
        needed_tokens=needed,
        imbalance=max(sampled) / (sum(sampled) / len(sampled)),
    )


def _block(engine: EngineConfig) -> int:
    """Granularity of the prefix cache."""
    if not isinstance(engine, VllmConfig):
        return 1
    assert engine.block_tokens is not None, "as `engine_of` says"
    return engine.block_tokens


def _row(policy: Policy, own: Sequence[PolicyRun]) -> dict[str, Value]:
    return {
        "policy": policy,
        "seconds": median(p.duration_s for p in own),
        "hit rate": median(p.hit_rate for p in own),
        "best": median(p.best for p in own),
        "of best": median(p.hit_rate / p.best for p in own),
        "imbalance": median(p.imbalance for p in own),
    }
