"""The plan and its best possible reuse by hand; the policies on emulated replicas, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from muster import clock
from muster.engine.config import EmulatedEngineConfig, Policy
from muster.engine.timing import EngineTiming
from muster.errors import UserError
from muster.lab.bench.routing import real
from muster.lab.bench.routing.real import Planned, PolicyRun, RoutingSetup, needed_tokens
from muster.lab.emulated.replica import EmulatedReplica

ENGINE = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.02, prefill_s=0.001),
    max_running=32,
    max_step_tokens=512,
    max_model_len=1024,
    kv_capacity_tokens=64_000,
)


def planned(group: int = 0, turns: int = 2) -> Planned:
    return Planned(group=group, tools_s=(0.1,) * (turns - 1))


def test_perfect_reuse_computes_a_prompt_once_and_of_each_turn_what_is_new() -> None:
    own = [(10, 4), (20, 4)]  # 6 tokens shown, and the last sampled one, which was never fed
    assert needed_tokens([own], [planned()], block=1) == 10 + 7
    assert needed_tokens([own, own], [planned(), planned()], block=1) == (10 + 7) + (1 + 7)
    assert needed_tokens([own, own], [planned(0), planned(1)], block=1) == 2 * (10 + 7)


def test_where_blocks_are_cached_the_rest_of_a_block_is_computed_again() -> None:
    assert needed_tokens([[(10, 4), (20, 4)]], [planned()], block=8) == 10 + (20 - 8)


def test_the_same_seed_gives_the_same_plan_and_its_contexts_fit() -> None:
    assert real.plan(3) == real.plan(3) != real.plan(4)
    grown = real.REPLY_TOKENS + real.OBSERVATION_TOKENS
    longest = max(len(p.tools_s) + 1 for seed in range(20) for p in real.plan(seed))
    assert real.PROMPT_TOKENS + longest * grown < real.MAX_MODEL_LEN


def play(policy: Policy) -> PolicyRun:
    async def main() -> PolicyRun:
        replicas = [EmulatedReplica(f"engine{i}", ENGINE) for i in range(2)]
        place = RoutingSetup(replicas=replicas, vocabulary=300, block=ENGINE.block_tokens, rng=np.random.default_rng(0))
        return await place.play(policy, real.plan(0))

    return clock.run_virtual(main())


def test_staying_comes_near_the_best_possible_and_going_round_does_not() -> None:
    ours, round_robin = play("affinity"), play("round_robin")
    assert ours.prompt_tokens == pytest.approx(round_robin.prompt_tokens, rel=0.02)
    assert round_robin.hit_rate < ours.hit_rate <= ours.best
    assert ours.hit_rate > 0.98 * ours.best


def test_an_engine_that_is_not_known_is_the_users_error() -> None:
    with pytest.raises(UserError, match="embedded or vllm"):
        real.engine_of("tgi")
