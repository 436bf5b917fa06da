"""Faults while weights are published: real engines, killed and misled.

What is asserted each time: whoever asks is answered, each token is labelled with the weights that sampled it (its
log-probability is that of those weights), and nothing serves a version that was not delivered.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import tiny_llama as tiny
from app.publication_ground import PUBLISHER, ROUTER, Ground, Machine, T, answers, prompt
from muster import clock
from muster.engine.config import ServersConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.pieces import Reply
from muster.engine.port import InFlight
from muster.engine.servers.restarter import restarting
from muster.errors import PublicationError
from muster.publish.config import CheckpointConfig, PublisherConfig
from muster.publish.transports import Exporter, exporter_for
from muster.types import Floats, Ints, Sampling, Session

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    """Two engine processes for all tests, started again when a test has killed them."""
    folder = tmp_path_factory.mktemp("faults")
    model = tiny.write_model(folder / "model")
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> tuple[list[Machine], Fleet]:
            machines = [Machine(f"victim{i}", model) for i in range(2)]
            fleet = Fleet([m.name for m in machines], ROUTER)
            config = ServersConfig(restarts_per_hour=100, first_delay_s=0.0)
            restarters = await stack.enter_async_context(asyncio.TaskGroup())
            pairs = zip(machines, fleet.replicas, strict=True)
            servers = [
                stack.enter_async_context(restarting(m.start, seat, config, restarters=restarters)) for m, seat in pairs
            ]
            await asyncio.gather(*servers)
            return machines, fleet

        machines, fleet = runner.run(start())
        numbers = iter(range(1, 1000))

        def play(body: Callable[..., Awaitable[None]], *more: Any, publisher: PublisherConfig = PUBLISHER) -> None:
            async def main() -> None:
                async with clock.timeout(60):
                    ground = Ground(fleet, folder, publisher)
                    for member in fleet.replicas:  # those that the test before has killed
                        await answers(member)
                    number = next(numbers)
                    await ground.deliver(number)
                    await ground.on_one_version(number)
                    await body(ground, machines, number, numbers, *more)

            runner.run(main())

        yield play
        runner.run(stack.aclose())


Play = Callable[..., None]


# --- killed -------------------------------------------------------------------------------------------


def test_killed_in_mid_request_the_turn_goes_on_elsewhere_from_its_kept_tokens(real: Play) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, _: Iterator[int]) -> None:
        for machine in machines:
            machine.spoke.clear()
        before = (await ground.fleet.statistics()).generated_tokens
        request = ground.ask("a", 400)
        while (await ground.fleet.statistics()).generated_tokens < before + 20:
            await clock.sleep(0.002)
        (at,) = (m for m in ground.fleet.replicas if ground.fleet.draining(m.name))
        await at.pause(InFlight.HOLD)  # so that it cannot end before it is killed
        victim, survivor = machines if at.name == machines[0].name else machines[::-1]
        await victim.spoke.wait()
        (other,) = (m for m in ground.fleet.replicas if m is not at)
        made = (await other.statistics()).generated_tokens
        victim.kill()
        completion = await request
        ground.labelled("a", completion, 400)
        assert completion.replica == survivor.name
        assert (await other.statistics()).generated_tokens - made < 400, "what had arrived was not sampled again"

    real(body)


def test_restarted_with_old_weights_it_serves_nothing_until_they_are_right(real: Play) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, _: Iterator[int]) -> None:
        machines[0].kill()
        await ground.look_until(lambda: ground.states["victim0"] is ReplicaState.STALE)
        completions = await asyncio.gather(*[ground.ask(f"s{i}", 5) for i in range(6)])
        assert {c.replica for c in completions} == {"victim1"}
        assert await ground.look(), "the run sees that it has other weights"
        assert sorted(await ground.deliver(number)) == ["victim0", "victim1"]
        await ground.on_one_version(number)

    real(body)


@pytest.mark.parametrize("call", ["stage", "commit"])
def test_killed_while_weights_are_published_the_others_serve_them_and_it_does_once_it_is_back(
    real: Play, call: str
) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        machines[1].dies_in(call)
        requests = [ground.ask(f"s{i}", 60) for i in range(4)]
        new = next(numbers)
        assert await ground.deliver(new) == ["victim0"]
        for i, request in enumerate(requests):
            ground.labelled(f"s{i}", await request, 60)
        after = await ground.ask("after", 5)
        assert (after.replica, set(after.versions_T.tolist())) == ("victim0", {new})
        await ground.heal()
        await ground.on_one_version(new)

    real(body)


# --- weights that are wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["shared file", "storage", "storage, as a delta"])
def test_a_corrupt_file_is_served_by_nobody_and_all_stay_on_the_version_before(
    real: Play, through: str, tmp_path: Path
) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        if through != "shared file":
            form = "delta" if "delta" in through else "whole"
            ground.weights.exporter = _storage(tmp_path, form)
            number = next(numbers)
            await ground.deliver(number)  # what a delta is applied to
        ground.weights.corrupt = True
        request = ground.ask("a", 200)
        with pytest.raises(PublicationError, match=r"digest|corrupt|damaged"):
            await ground.deliver(next(numbers))
        ground.labelled("a", await request, 200)
        await ground.on_one_version(number)

    real(body)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_storage_that_is_full_stops_the_export_and_all_serve_the_version_before(real: Play, tmp_path: Path) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        ground.weights.exporter = _storage(tmp_path, "whole")
        number = next(numbers)
        await ground.deliver(number)
        request = ground.ask("a", 200)
        filler = tmp_path / "filler"
        with suppress(OSError):
            filler.write_bytes(bytes(8 << 20))
        with pytest.raises(PublicationError, match="No space left"):
            await ground.deliver(next(numbers))
        assert ground.delivery.serving == ground.delivered[number]
        ground.labelled("a", await request, 200)
        await ground.on_one_version(number)
        filler.unlink()
        number = next(numbers)
        assert len(await ground.deliver(number)) == 2
        await ground.on_one_version(number)

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    try:
        real(body)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def _storage(folder: Path, form: Literal["whole", "delta"]) -> Exporter:
    config = CheckpointConfig(location=str(folder / "storage"), form=form)
    return exporter_for(config, run_label="faults", directory=folder)


def test_a_version_whose_canary_fails_everywhere_is_rolled_back_on_every_replica(real: Play) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        request = ground.ask("a", 300)
        honest = ground.weights.score

        async def noise(sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
            return [scores + np.float32(5.0) for scores in await honest(sequences, temperature=temperature)]

        ground.weights.score = noise  # type: ignore[method-assign]
        with pytest.raises(PublicationError, match="the canary differs by 5"):
            await ground.deliver(next(numbers))
        ground.labelled("a", await request, 300)
        await ground.on_one_version(number)

    real(body)


# --- load ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", list(InFlight))
def test_a_publication_during_a_full_queue_ends_and_labels_every_token(real: Play, in_flight: InFlight) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        requests = {f"q{i}": ground.ask(f"q{i}", 40) for i in range(20)}  # 8 run at once
        while (await ground.fleet.statistics()).running < 8:
            await clock.sleep(0.01)
        new = next(numbers)
        assert len(await ground.deliver(new)) == 2
        for name, request in requests.items():
            reply = Reply(prompt(name), Sampling(temperature=T, max_tokens=40, seed=7))
            reply.add(await request)
            while (whole := reply.whole) is None:  # as the agent goes on
                reply.add(await ground.fleet.generate(reply.prompt, reply.sampling, Session(id=name, group=name)))
            ground.labelled(name, whole, 40)
        await ground.on_one_version(new)

    real(body, publisher=PUBLISHER.model_copy(update={"in_flight": in_flight}))


def test_two_publications_in_a_row_reach_a_request_that_runs_through_both(real: Play) -> None:
    async def body(ground: Ground, machines: list[Machine], number: int, numbers: Iterator[int]) -> None:
        request = ground.ask("long", 400)
        while (await ground.fleet.statistics()).running < 1:
            await clock.sleep(0.01)
        first, second = next(numbers), next(numbers)
        await ground.deliver(first)
        await ground.deliver(second)
        completion = await request
        ground.labelled("long", completion, 400)
        assert completion.versions_T[-1] == second
        await ground.on_one_version(second)

    real(body)
