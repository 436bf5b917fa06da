"""A real vLLM server, beyond the contract: dialogues, proofs of weights, refusals, its death."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import real_vllm
import tiny_llama as tiny
from contract.engine_rigs import EmbeddedRig, Rig, T
from contract.engine_steps import Check, agrees, prompt, publish, running, sampling, session, whole
from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.engine.vllm.launch import launch
from muster.errors import EngineError
from muster.model.digest import digest
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, TransportConfig
from muster.publish.transports import exporter_for
from muster.types import Publication, Sampling, Version

pytestmark = real_vllm.NEEDED

TOLERANCE = 1e-4
"""Of a log-probability, float32 on both sides. Measured: 1e-5."""


def test_over_a_dialogue_with_tools_the_sampled_ids_are_the_ids_that_are_trained(on_vllm: Check) -> None:
    """The transcript is prompt, sampled ids, the tool's ids, sampled ids, …: never text in between."""

    async def body(rig: Rig) -> None:
        _, held = await publish(rig, InFlight.HOLD)
        transcript = prompt(30, 90)
        sampled_at: list[int] = []
        logprobs: list[float] = []
        for turn in range(4):
            completion = await rig.replica.generate(transcript, sampling(40, stop_tokens=(2,)), session("dialogue"))
            if turn:
                assert completion.cached_tokens >= whole(rig, sampled_at[-1]), "a turn starts from what is cached"
            sampled_at += range(len(transcript), len(transcript) + len(completion.tokens_T))
            logprobs += completion.logprobs_T.tolist()
            transcript = np.concatenate([transcript, completion.tokens_T, prompt(40 + turn, 25)])
        expected = rig.reference(held.number, transcript)[sampled_at]
        np.testing.assert_allclose(logprobs, expected, atol=TOLERANCE)
        scores = await rig.replica.score(transcript, temperature=T)
        np.testing.assert_allclose(scores.logprobs_T[sampled_at], logprobs, atol=TOLERANCE)

    on_vllm(body)


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_scores_and_samples_are_after_temperature(on_vllm: Check, temperature: float) -> None:
    async def body(rig: Rig) -> None:
        asked = Sampling(temperature=temperature, max_tokens=20, seed=1)
        completion = await rig.replica.generate(prompt(50), asked, session("warm"))
        sequence = np.concatenate([prompt(50), completion.tokens_T])
        number = int(completion.versions_T[0])
        expected = tiny.reference(number, sequence, temperature, real_vllm.MODEL)
        np.testing.assert_allclose(completion.logprobs_T, expected[len(prompt(50)) :], atol=TOLERANCE)
        scores = await rig.replica.score(sequence, temperature=temperature)
        np.testing.assert_allclose(scores.logprobs_T, expected, atol=TOLERANCE)

    on_vllm(body)


def test_prompts_beyond_what_one_step_computes_are_served_with_their_seeds(on_vllm: Check) -> None:
    """On the CPU a step that computes a part of a seeded request's prompt would end the engine."""

    async def body(rig: Rig) -> None:
        prompts = [prompt(200 + i, 900) for i in range(8)]
        asked = Sampling(temperature=T, max_tokens=4, seed=5)
        replies = await asyncio.gather(
            *(rig.replica.generate(p, asked, session(f"long{i}")) for i, p in enumerate(prompts))
        )
        again = await rig.replica.generate(prompts[-1], asked, session("again"))
        assert again.tokens_T.tolist() == replies[-1].tokens_T.tolist()

    on_vllm(body)


def test_weights_that_are_not_what_was_published_are_never_committed(on_vllm: Check) -> None:
    async def body(rig: Rig) -> None:
        before = (await rig.replica.statistics()).version
        publication = rig.next_publication()
        forged = replace(publication, version=Version(number=publication.version.number, digest="0" * 64))
        with pytest.raises(EngineError, match="would hold"):
            await rig.replica.stage(forged)
        await rig.replica.pause(InFlight.HOLD)
        with pytest.raises(EngineError):
            await rig.replica.commit(forged.version, CachePolicy.KEEP)
        await rig.replica.resume()
        assert (await rig.replica.statistics()).version == before
        completion = await rig.replica.generate(prompt(51), sampling(5), session("t"))
        agrees(rig, prompt(51), completion, before.number)

    on_vllm(body)


def test_a_file_that_is_broken_is_refused_and_the_next_one_is_taken(on_vllm: Check) -> None:
    async def body(rig: Rig) -> None:
        publication = rig.next_publication()
        path = Path(publication.location)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(EngineError):
            await rig.replica.stage(publication)
        path.write_bytes(content)
        _, held = await publish(rig, InFlight.HOLD, publication=publication)
        assert held == publication.version

    on_vllm(body)


@pytest.mark.parametrize(
    ("transport", "forms"),
    [
        (MemoryConfig(), ["whole", "whole"]),
        (DirectConfig(form="delta"), ["whole", "delta"]),
        (CheckpointConfig(form="delta"), ["whole", "delta"]),
    ],
    ids=["memory", "direct", "checkpoint"],
)
def test_weights_arrive_by_every_transport(
    on_vllm: Check, tmp_path: Path, transport: TransportConfig, forms: list[str]
) -> None:
    async def body(rig: Rig) -> None:
        exporter = exporter_for(transport, run_label=tmp_path.name, directory=tmp_path)
        state = tiny.random_state(7, real_vllm.MODEL)
        sent: list[Publication] = []
        for _ in forms:
            state["model.norm.weight"] = state["model.norm.weight"] + 0.5
            publication = exporter.export(
                {name: tensor.numpy() for name, tensor in state.items()},
                number=rig.next_publication().version.number,
                digest=digest(state),
                dtype="float32",
            )
            sent.append(publication)
            _, held = await publish(rig, InFlight.HOLD, publication=publication)
            assert held.digest == digest(state)
        assert [publication.form for publication in sent] == forms
        exporter.clear()
        await publish(rig, InFlight.HOLD)  # the other tests know the rig's own weights

    on_vllm(body)


def test_requests_that_wait_for_a_place_during_a_commit_never_see_the_old_prefix(on_vllm: Check) -> None:
    async def body(rig: Rig) -> None:
        await publish(rig, InFlight.HOLD)
        shared = prompt(52, 200)
        await rig.replica.generate(shared, sampling(5), session("first"))
        long = [
            asyncio.create_task(rig.replica.generate(prompt(60 + i), sampling(300), session(f"l{i}"))) for i in range(8)
        ]
        await running(rig.replica, 8)
        waiting = [asyncio.create_task(rig.replica.generate(shared, sampling(5), session(f"w{i}"))) for i in range(3)]
        while (await rig.replica.statistics()).waiting != 3:
            await clock.sleep(0.01)
        _, held = await publish(rig, InFlight.HOLD)
        completions = await asyncio.gather(*waiting)
        await asyncio.gather(*long)
        assert min(c.cached_tokens for c in completions) == 0, "the first of them computes its prompt anew"
        for completion in completions:
            assert completion.versions_T.tolist() == [held.number] * 5
            agrees(rig, shared, completion, held.number)

    on_vllm(body)


def test_a_killed_server_fails_what_it_was_doing_and_says_how_it_ended(tmp_path: Path) -> None:
    """In bfloat16, as a run serves: what was loaded, and what is published, has the digest that a trainer computes."""

    async def body() -> None:
        words: list[str] = []
        ended = asyncio.Event()

        def on_end(said: str) -> None:
            words.append(said)
            ended.set()

        model = real_vllm.write_model(tmp_path / "model")
        async with launch(real_vllm.config("bfloat16"), model, "dying", on_end=on_end) as replica:
            rig = EmbeddedRig(replica, tmp_path, real_vllm.MODEL, real_vllm.BLOCK_TOKENS)
            publication = tiny.publish(tmp_path, 1, 1, torch.bfloat16, real_vllm.MODEL)
            _, held = await publish(rig, InFlight.HOLD, publication=publication)
            assert held == publication.version
            request = asyncio.create_task(replica.generate(prompt(53), sampling(900), session("u")))
            await running(replica, 1)
            os.kill(_api_process("dying"), signal.SIGKILL)
            async with clock.timeout(10):
                with pytest.raises(EngineError):
                    await request
                await ended.wait()
                with pytest.raises(EngineError, match="dead: its process ended with -9"):
                    await replica.score(prompt(53), temperature=T)
            assert len(words) == 1

    clock.run(body())


def _api_process(name: str) -> int:
    """The process that was told to be `name`, and is no child of its own kind."""
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            told = f"MUSTER_ENGINE_NAME={name}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if told and b"vllm.entrypoints.openai.api_server" in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError(f"no process is {name}")
