"""Contract of every trainer: the fake on the virtual clock and the real one in its own process, by the same suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from app.publications import in_memory
from muster import clock
from muster.errors import MusterError, TrainerError
from muster.lab.fakes.trainer import FakeTrainer, FakeTrainerConfig
from muster.trainer.config import TrainerConfig
from muster.trainer.port import Trainer
from muster.trainer.process.trainer import ProcessTrainer
from trainer.tiny import random_batch, write_tiny

TOKENS = [np.arange(3, 13, dtype=np.int32), np.arange(3, 8, dtype=np.int32)]


class Bench(Protocol):
    """Runs a body with a trainer that is as new."""

    def __call__(self, body: Callable[[Trainer], Awaitable[Any]]) -> Any: ...


@pytest.fixture(scope="module", params=["fake", pytest.param("process", marks=pytest.mark.model)])
def runner(request: pytest.FixtureRequest) -> Iterator[tuple[asyncio.Runner, str]]:
    loop = clock.VirtualLoop if request.param == "fake" else None
    with asyncio.Runner(loop_factory=loop) as made:
        yield made, request.param


@pytest.fixture(scope="module")
def bench(runner: tuple[asyncio.Runner, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One trainer for all tests (a process takes seconds to start), put back to its start before each."""
    loop, kind = runner
    root = tmp_path_factory.mktemp(kind)
    trainer = loop.run(_make(kind, root))
    loop.run(trainer.save(root / "new"))

    def run(body: Callable[[Trainer], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            await trainer.restore(root / "new")
            return await body(trainer)

        return loop.run(main())

    yield run
    loop.run(trainer.close())
    with pytest.raises(TrainerError, match="closed"):
        loop.run(trainer.export(1))
    loop.run(trainer.close())


async def _make(kind: str, root: Path) -> Trainer:
    if kind == "fake":
        return FakeTrainer(FakeTrainerConfig())
    model = str(write_tiny(root / "model"))
    config = TrainerConfig(dtype="float32", threads=1)
    return ProcessTrainer(config, model=model, temperature=0.8, exporter=in_memory(root))


def test_a_step_answers_for_its_batch(bench):
    made = random_batch(0, step=7)
    result = bench(lambda trainer: trainer.step(made))
    assert result.step == 7 and result.duration_s > 0
    assert set(result.divergence) == {m.id for g in made.groups for m in g.members}
    assert result.metrics["trained_tokens"] == sum(m.sampled_tokens for g in made.groups for m in g.members)
    promised = "loss grad_norm lr k1 k3 m2 ess clip_fraction dropped_fraction mean_abs_logprob_difference"
    assert set(promised.split()) | {"forward_tokens", "forward_s", "optimizer_s"} <= set(result.metrics)
    assert all(isinstance(value, float) and np.isfinite(value) for value in result.metrics.values())


def test_a_step_changes_the_published_digest_and_nothing_else_does(bench):
    async def body(trainer: Trainer) -> list[str]:
        first = await trainer.export(0)
        again = await trainer.export(1)
        await trainer.score(TOKENS, temperature=0.8)
        after_score = await trainer.export(2)
        await trainer.step(random_batch(0))
        stepped = await trainer.export(3)
        assert [p.version.number for p in (first, again, after_score, stepped)] == [0, 1, 2, 3]
        assert first.size_bytes > 0 and first.transport == "memory"
        return [p.version.digest for p in (first, again, after_score, stepped)]

    first, again, after_score, stepped = bench(body)
    assert first == again == after_score != stepped


def test_a_batch_without_gradient_moves_nothing(bench):
    async def body(trainer: Trainer) -> None:
        before = await trainer.export(0)
        result = await trainer.step(random_batch(0, rewards=(1.0, 1.0)))
        after = await trainer.export(1)
        assert before.version.digest == after.version.digest
        assert result.metrics["trained_tokens"] == 0 and result.divergence == {}

    bench(body)


def test_divergence_is_measured_of_every_member_and_moves_nothing(bench):
    made = random_batch(0)

    async def body(trainer: Trainer) -> tuple[Any, Any, Any]:
        before = await trainer.export(0)
        first = await trainer.measure(made.groups)
        again = await trainer.measure(made.groups[:1])
        after = await trainer.export(0)
        assert before.version.digest == after.version.digest
        return first, again, await trainer.step(made)

    first, again, result = bench(body)
    assert set(first) == {m.id for g in made.groups for m in g.members}
    assert {id: first[id] for id in again} == again and set(again) == {m.id for m in made.groups[0].members}
    for id, k3 in result.divergence.items():  # what the step reports of the same weights
        assert first[id].k3 == pytest.approx(k3, rel=1e-3, abs=1e-6) and first[id].rms >= 0


def test_divergence_is_of_the_present_weights(bench):
    made = random_batch(0)

    async def body(trainer: Trainer) -> tuple[Any, Any]:
        await trainer.export(0)
        before = await trainer.measure(made.groups)
        await trainer.step(made)
        await trainer.export(1)
        return before, await trainer.measure(made.groups)

    before, after = bench(body)
    assert all(before[id] != after[id] for id in before)


def test_a_measured_batch_takes_the_same_step(bench, tmp_path):
    async def body(trainer: Trainer) -> None:
        await trainer.save(tmp_path / "saved")
        await trainer.step(random_batch(1))
        expected = await trainer.export(1)
        await trainer.restore(tmp_path / "saved")
        await trainer.measure(random_batch(1).groups)
        await trainer.step(random_batch(1))
        assert (await trainer.export(1)).version.digest == expected.version.digest

    bench(body)


def test_a_member_that_sampled_nothing_has_no_divergence(bench):
    made = random_batch(0)
    silent = replace(made.groups[0].members[0], segments=())
    group = replace(made.groups[0], members=(silent, *made.groups[0].members[1:]))
    found = bench(lambda trainer: trainer.measure([group]))
    assert set(found) == {m.id for m in group.members[1:]}
    assert bench(lambda trainer: trainer.measure([])) == {}


def test_scores_are_log_probabilities_of_each_token_given_its_past(bench):
    long_T, short_T = bench(lambda trainer: trainer.score(TOKENS, temperature=0.8))
    assert (len(long_T), len(short_T)) == (10, 5) and long_T[0] == short_T[0] == 0
    assert (long_T[1:] < 0).all() and long_T.dtype == np.float32
    np.testing.assert_allclose(long_T[:5], short_T, atol=1e-5)


def test_scores_follow_the_weights(bench):
    async def body(trainer: Trainer) -> tuple[Any, Any]:
        (before, _) = await trainer.score(TOKENS, temperature=0.8)
        await trainer.step(random_batch(0))
        (after, _) = await trainer.score(TOKENS, temperature=0.8)
        return before, after

    before, after = bench(body)
    assert np.abs(before - after).max() > 0


def test_a_restored_state_takes_the_same_next_step(bench, tmp_path):
    async def body(trainer: Trainer) -> None:
        await trainer.step(random_batch(1))
        await trainer.save(tmp_path / "saved")
        await trainer.step(random_batch(2))
        expected = await trainer.export(1)
        await trainer.step(random_batch(3))
        await trainer.restore(tmp_path / "saved")
        await trainer.step(random_batch(2))
        found = await trainer.export(1)
        assert found.version.digest == expected.version.digest

    bench(body)


def test_restoring_what_is_no_checkpoint_is_an_error_and_the_trainer_goes_on(bench, tmp_path):
    async def body(trainer: Trainer) -> None:
        with pytest.raises(MusterError, match="not a checkpoint"):
            await trainer.restore(tmp_path / "nothing")
        await trainer.export(1)

    bench(body)


def test_calls_at_the_same_time_are_answered_in_order(bench):
    async def body(trainer: Trainer) -> None:
        stepped, exported = await asyncio.gather(trainer.step(random_batch(4)), trainer.export(1))
        after = await trainer.export(2)
        assert stepped.metrics["updates"] == 1 and exported.version.digest == after.version.digest

    bench(body)


def test_a_cancelled_call_leaves_the_trainer_usable(bench):
    async def body(trainer: Trainer) -> None:
        call = asyncio.create_task(trainer.step(random_batch(5)))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await trainer.export(1)).version.number == 1
        assert (await trainer.step(random_batch(6))).step == 0

    bench(body)
