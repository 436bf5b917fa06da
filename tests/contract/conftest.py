"""The engine's contract is checked on every kind of replica.

A check takes a coroutine over a `Rig` and runs it: on virtual time where nothing else lives, else on the real clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

import real_vllm
import tiny_llama as tiny
from contract.engine_rigs import EMULATED, EmbeddedRig, EmulatedRig, FakeRig, SglangRig, WholeFleet
from contract.engine_steps import CONFIG, Body, Check
from engine.sglang.sglang_double import connected
from muster import clock
from muster.engine.embedded.launch import launch
from muster.engine.http.replica import HttpReplica
from muster.engine.vllm.launch import launch as launch_vllm
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.emulated.serve import serving
from muster.lab.faults import INITIAL


@pytest.fixture(scope="module")
def on_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """One engine process for all tests; each leaves it serving and idle."""
    folder = tmp_path_factory.mktemp("engine")
    model = tiny.write_model(folder / "model")
    with asyncio.Runner() as runner:
        launched = launch(CONFIG, model, "embedded")
        rig = EmbeddedRig(runner.run(_enter(launched)), folder)
        yield lambda body: runner.run(_awaited(body(rig)))
        runner.run(_awaited(launched.__aexit__(None, None, None)))


@pytest.fixture(scope="session")
def on_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """One real server for all tests."""
    folder = tmp_path_factory.mktemp("vllm")
    with asyncio.Runner() as runner:
        launched = launch_vllm(real_vllm.config(), real_vllm.write_model(folder / "model"), "vllm")
        replica = runner.run(_enter(launched))
        rig = EmbeddedRig(replica, folder, real_vllm.MODEL, real_vllm.BLOCK_TOKENS)
        yield lambda body: runner.run(_awaited(body(rig)))
        runner.run(_awaited(launched.__aexit__(None, None, None)))


@pytest.fixture(
    params=[
        "fake",
        "emulated",
        "emulated over HTTP",
        "fleet",
        "embedded",
        "sglang's double",
        pytest.param("vllm", marks=real_vllm.NEEDED),
    ]
)
def check(request: pytest.FixtureRequest) -> Check:
    async def on_fake(body: Body) -> None:
        await body(FakeRig())

    async def on_emulated(body: Body) -> None:
        await body(EmulatedRig(EmulatedReplica("emulated", EMULATED)))

    async def on_fleet(body: Body) -> None:
        await body(EmulatedRig(WholeFleet([EmulatedReplica(f"emulated{i}", EMULATED) for i in range(2)])))

    async def over_http(body: Body) -> None:
        engine = EmulatedEngine(EMULATED, name="emulated", version=INITIAL)
        async with serving(engine, token="secret") as url, HttpReplica("emulated", url, "secret") as replica:
            await body(EmulatedRig(replica))

    async def on_sglang(body: Body) -> None:
        folder = request.getfixturevalue("tmp_path")
        async with connected(tiny.write_model(folder / "model")) as (replica, double):
            await body(SglangRig(replica, folder, double))

    match request.param:
        case "fake":
            return lambda body: clock.run_virtual(on_fake(body))
        case "emulated":
            return lambda body: clock.run_virtual(on_emulated(body))
        case "fleet":
            return lambda body: clock.run_virtual(on_fleet(body))
        case "emulated over HTTP":
            return lambda body: clock.run(over_http(body))
        case "sglang's double":
            return lambda body: clock.run(on_sglang(body))
        case "vllm":
            return request.getfixturevalue("on_vllm")
        case _:
            return request.getfixturevalue("on_embedded")


async def _enter(context: Any) -> Any:
    return await context.__aenter__()


async def _awaited(awaitable: Awaitable[object]) -> None:
    await awaitable
