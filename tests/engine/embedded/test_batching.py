"""The embedded engine's core: exact under batching, sharing, eviction and chunks; its pauses and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_llama as tiny
from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.batching import BatchingEngine
from muster.engine.embedded.packed_weights import PackedWeights, pack
from muster.engine.port import CachePolicy, InFlight, Pause
from muster.errors import EngineError, UserError
from muster.model.config import LlamaConfig
from muster.types import Completion, DeviceState, Ints, Sampling, Session, Version

T = 0.8


def packed(seed: int = 0, config: LlamaConfig = tiny.CONFIG, dtype: torch.dtype = torch.float32) -> PackedWeights:
    return pack(config, {n: t.to(dtype) for n, t in tiny.random_state(seed, config).items()}, dtype)


def engine(weights: PackedWeights | None = None, **settings: Any) -> BatchingEngine:
    config = EmbeddedEngineConfig.model_validate(
        {"dtype": "float32", "max_streams": 4, "max_model_len": 256, "kv_capacity_tokens": 8 * 256} | settings
    )
    return BatchingEngine(config, weights or packed(), name="core", version=0, started_at=clock.now())


def tokens(seed: int, length: int) -> Ints:
    return np.random.default_rng(seed).integers(3, 300, length).astype(np.int32)


def sampling(max_tokens: int = 8, seed: int | None = 1) -> Sampling:
    return Sampling(temperature=T, max_tokens=max_tokens, seed=seed)


def submit(core: BatchingEngine, name: str, prompt: Ints, options: Sampling, into: dict[str, Completion]) -> None:
    core.submit(name, prompt, options, Session(id=name.split("/")[0]), lambda done: into.update({name: done}))


def drain(core: BatchingEngine) -> None:
    while core.busy:
        core.step()


def complete(core: BatchingEngine, prompts: Mapping[str, Ints], options: Sampling) -> dict[str, Completion]:
    done: dict[str, Completion] = {}
    for name, prompt in prompts.items():
        submit(core, name, prompt, options, done)
    drain(core)
    return done


def exact(prompt: Ints, done: Completion, seed: int = 0, config: LlamaConfig = tiny.CONFIG) -> None:
    expected = tiny.reference(seed, np.concatenate([prompt, done.tokens_T]), T, config)[len(prompt) :]
    np.testing.assert_allclose(done.logprobs_T, expected, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        tiny.CONFIG,
        replace(tiny.CONFIG, tied_embeddings=False),
        replace(tiny.CONFIG, model_type="qwen2", qkv_bias=True),
        replace(tiny.CONFIG, kv_heads=4),
    ],
)
def test_log_probabilities_are_exact_for_every_kind_of_model(config: LlamaConfig) -> None:
    prompt = tokens(0, 40)
    (done,) = complete(engine(packed(0, config)), {"a": prompt}, sampling()).values()
    exact(prompt, done, config=config)


@pytest.mark.parametrize(("streams", "chunk"), [(2, 7), (4, 64), (6, 1000)])
def test_log_probabilities_stay_exact_through_turns_sharing_eviction_and_chunks(streams: int, chunk: int) -> None:
    core = engine(max_streams=streams, prefill_chunk_tokens=chunk)
    rng = np.random.default_rng(streams)
    few_shot = tokens(1, 110)
    prompts = {f"g{g}.{i}": np.concatenate([few_shot, tokens(10 + g, 4 + 20 * g)]) for g in range(3) for i in range(3)}
    for turn in range(3):
        done = complete(core, {f"{name}/{turn}": p for name, p in prompts.items()}, sampling(5))
        for name, completion in done.items():
            owner = name.split("/")[0]
            exact(prompts[owner], completion)
            observation = tokens(int(rng.integers(1_000_000)), int(rng.integers(1, 12)))
            prompts[owner] = np.concatenate([prompts[owner], completion.tokens_T, observation])
    statistics = core.statistics()
    assert statistics.cached_tokens > 0.4 * statistics.prompt_tokens
    assert statistics.kv_used_tokens <= statistics.kv_capacity_tokens


def test_bf16_is_close_to_fp32() -> None:
    prompt = tokens(2, 60)
    core = engine(packed(dtype=torch.bfloat16), dtype="bfloat16")
    (done,) = complete(core, {"a": prompt}, sampling(20)).values()
    expected = tiny.reference(0, np.concatenate([prompt, done.tokens_T]), T)[60:]
    assert np.abs(done.logprobs_T - expected).mean() < 0.1


def test_a_seed_makes_the_choices_whatever_else_runs() -> None:
    prompt = tokens(3, 30)
    alone = complete(engine(), {"a": prompt}, sampling(12))["a"]
    crowd = complete(engine(), {"x": tokens(4, 50), "a": prompt, "y": tokens(5, 20)}, sampling(12))["a"]
    other = complete(engine(), {"a": prompt}, sampling(12, seed=2))["a"]
    assert alone.tokens_T.tolist() == crowd.tokens_T.tolist() != other.tokens_T.tolist()


def test_siblings_without_a_seed_differ_but_a_restart_repeats_them() -> None:
    prompts = {name: tokens(3, 30) for name in "abc"}
    first, again = (complete(engine(), prompts, sampling(12, seed=None)) for _ in range(2))
    assert len({tuple(c.tokens_T.tolist()) for c in first.values()}) == 3
    assert [c.tokens_T.tolist() for c in first.values()] == [c.tokens_T.tolist() for c in again.values()]


def test_the_context_limit_ends_a_completion() -> None:
    (done,) = complete(engine(), {"a": tokens(6, 250)}, sampling(100)).values()
    assert (done.finish, len(done.tokens_T)) == ("length", 6)


def test_the_times_of_a_request_add_up_to_its_life() -> None:
    core = engine(max_streams=1, kv_capacity_tokens=2048)
    started = clock.now()
    done = complete(core, {"a": tokens(7, 50), "b": tokens(8, 50)}, sampling(20))
    life = clock.now() - started
    second = done["b"]
    assert second.queue_s >= done["a"].decode_s
    assert second.queue_s + second.prefill_s + second.decode_s == pytest.approx(life, abs=0.02)


def test_an_aborted_request_returns_what_it_has_and_its_cache_serves_the_next() -> None:
    core, done = engine(), dict[str, Completion]()
    prompt = tokens(9, 40)
    submit(core, "a", prompt, sampling(100), done)
    for _ in range(6):
        core.step()
    assert core.abort(["a", "unknown"]) == 1
    assert (done["a"].finish, len(done["a"].tokens_T)) == ("abort", 6)
    assert not core.busy
    again = complete(core, {"a/2": np.concatenate([prompt, done["a"].tokens_T])}, sampling())["a/2"]
    assert again.cached_tokens == 45


@pytest.mark.parametrize("cache", [CachePolicy.RECOMPUTE, CachePolicy.FLUSH])
def test_recomputing_held_siblings_computes_their_shared_prompt_once(cache: CachePolicy) -> None:
    core, done = engine(), dict[str, Completion]()
    prompt = tokens(10, 150)
    for name in "abc":
        submit(core, name, prompt, sampling(40, seed=ord(name)), done)
    for _ in range(10):
        core.step()
    pauses: list[Pause] = []
    core.pause(InFlight.HOLD, pauses.append)
    (pause,) = pauses
    assert pause.held == 3 and not core.busy
    new = packed(1)
    core.stage(Version(number=1, digest=new.digest), new)
    core.commit(Version(number=1, digest=new.digest), cache)
    assert core.statistics().kv_used_tokens == 0
    core.resume()
    drain(core)
    assert core.statistics().recomputed_tokens == pause.held_tokens
    assert 150 <= pause.held_tokens <= 150 + 3 * 10
    for completion in done.values():
        made = completion.versions_T == 1
        expected = tiny.reference(1, np.concatenate([prompt, completion.tokens_T]), T)[150:]
        np.testing.assert_allclose(completion.logprobs_T[made], expected[made], atol=1e-4)
        assert completion.recompute_s > 0 and completion.paused_s > 0


@pytest.mark.parametrize("cache", [CachePolicy.KEEP, CachePolicy.RECOMPUTE, CachePolicy.FLUSH])
def test_after_a_commit_nothing_tells_the_engine_from_a_fresh_one(cache: CachePolicy) -> None:
    prompt = tokens(13, 120)
    used, fresh = engine(), engine(packed(1))
    before = used.score(prompt, T)
    complete(used, {"a": prompt, "b": prompt}, sampling(20))
    publish(used, 1, cache)
    assert used.statistics().kv_used_tokens == 0
    np.testing.assert_array_equal(used.score(prompt, T).logprobs_T, fresh.score(prompt, T).logprobs_T)
    assert np.abs(used.score(prompt, T).logprobs_T - before.logprobs_T).max() > 0.1
    again, anew = (complete(core, {"a": prompt}, sampling(20))["a"] for core in (used, fresh))
    assert again.cached_tokens == 0
    np.testing.assert_array_equal(again.tokens_T, anew.tokens_T)
    np.testing.assert_array_equal(again.logprobs_T, anew.logprobs_T)
    assert again.versions_T.tolist() == [1] * 20


def test_a_commit_that_shares_starts_new_requests_from_old_keys_and_values() -> None:
    core, prompt = engine(), tokens(14, 120)
    complete(core, {"a": prompt}, sampling())
    publish(core, 1, CachePolicy.SHARE)
    shared = complete(core, {"b": prompt}, sampling())["b"]
    assert shared.cached_tokens == 119
    assert shared.versions_T.tolist() == [1] * 8
    expected = tiny.reference(1, np.concatenate([prompt, shared.tokens_T]), T)[120:]
    assert np.abs(shared.logprobs_T - expected).max() > 1e-3, "it was computed anew"
    publish(core, 2, CachePolicy.KEEP)
    exact(prompt, complete(core, {"c": prompt}, sampling())["c"], seed=2)


def test_flushing_gives_the_memory_of_the_cache_back_and_the_engine_goes_on() -> None:
    core, done = engine(max_streams=8, kv_capacity_tokens=16 * 256), dict[str, Completion]()
    prompts = {name: tokens(ord(name), 200) for name in "abcdefgh"}
    for name, prompt in prompts.items():
        submit(core, name, prompt, sampling(50), done)
    for _ in range(20):
        core.step()
    slots = core._store.slots_LSHCW
    held_bytes = _resident_bytes(slots)
    publish(core, 1, CachePolicy.FLUSH)
    assert _resident_bytes(slots) == 0 < held_bytes
    assert not slots.any()
    drain(core)
    for name, completion in done.items():
        sequence = np.concatenate([prompts[name], completion.tokens_T])
        made = completion.versions_T == 1
        assert made.any()
        np.testing.assert_allclose(completion.logprobs_T[made], tiny.reference(1, sequence, T)[200:][made], atol=1e-4)


def _resident_bytes(tensor: torch.Tensor) -> int:
    """Memory that the mapping behind `tensor` occupies now, as the kernel says."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            start, end = (int(address, 16) for address in first.split("-"))
            inside = start <= tensor.data_ptr() < end
        elif inside and first == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("every tensor lies in a mapping")


def publish(core: BatchingEngine, number: int, cache: CachePolicy) -> None:
    """Weights of seed `number`, while whatever runs is held."""
    new = packed(number)
    version = Version(number=number, digest=new.digest)
    core.pause(InFlight.HOLD, lambda _: None)
    core.stage(version, new)
    assert core.commit(version, cache) == version
    core.resume()


def test_weights_that_are_not_what_was_published_are_refused() -> None:
    core = engine()
    with pytest.raises(EngineError, match="digest"):
        core.stage(Version(number=1, digest="0" * 64), packed(1))


def test_a_request_that_arrives_in_a_pause_waits_and_its_wait_is_a_pause() -> None:
    core, done = engine(), dict[str, Completion]()
    core.pause(InFlight.HOLD, lambda _: None)
    submit(core, "a", tokens(11, 20), sampling(), done)
    assert not core.busy
    clock.block(0.02)
    core.resume()
    drain(core)
    assert done["a"].paused_s >= 0.02 > done["a"].queue_s


def test_what_the_engine_cannot_take_is_the_users_error() -> None:
    core, done = engine(), dict[str, Completion]()
    for wrong in (tokens(0, 0), tokens(0, 256), np.array([300], dtype=np.int32), np.array([-1], dtype=np.int32)):
        with pytest.raises(UserError, match="token_ids"):
            submit(core, "a", wrong, sampling(), done)
    submit(core, "a", tokens(0, 5), sampling(), done)
    with pytest.raises(UserError, match="request_id"):
        submit(core, "a", tokens(0, 5), sampling(), done)


def test_device_time_is_prefill_then_decode_and_idle_when_nothing_runs() -> None:
    core = engine()
    complete(core, {"a": tokens(12, 100)}, sampling(20))
    states = [i.state for i in core.statistics().intervals]
    assert states == [
        DeviceState.LOADING,
        DeviceState.IDLE,
        DeviceState.PREFILL,
        DeviceState.DECODE,
        DeviceState.IDLE,
    ]


def test_streams_that_do_not_fit_the_cache_are_a_configuration_error() -> None:
    with pytest.raises(ValueError, match="kv_capacity_tokens"):
        EmbeddedEngineConfig(max_streams=64, max_model_len=1024, kv_capacity_tokens=1024)
