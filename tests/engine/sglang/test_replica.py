"""The SGLang adapter's requests, against a double of its server; the contract tests run on it too."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_llama as tiny
from engine.sglang.sglang_double import Double, Faults, serving
from engine.sglang.sglang_steps import SESSION, begun, check, heard, prompt, sampling
from muster import clock
from muster.engine.port import InFlight
from muster.engine.sglang.replica import SglangReplica
from muster.engine.sglang.wire import label_of, version_of
from muster.errors import EngineError
from muster.transport.receive import Receiver
from muster.types import Version

pytestmark = pytest.mark.model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model")


# --- what is asked for ---------------------------------------------------------------------------------


@given(number=st.integers(0, 10**9), digest=st.text("0123456789abcdef", min_size=1))
def test_a_word_for_weights_says_number_and_digest(number: int, digest: str) -> None:
    version = Version(number=number, digest=digest)
    assert version_of(label_of(version)) == version


@given(word=st.text().filter(lambda word: ":" not in word))
def test_a_word_that_is_not_ours_says_nothing(word: str) -> None:
    assert version_of(word) is None


def test_a_request_leaves_nothing_to_the_servers_own_preferences(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        await replica.generate(prompt(1), sampling(stop_tokens=(7,)), SESSION)
        asked = heard(double, "/generate")[-1]
        parameters = asked["sampling_params"]
        assert (parameters["top_p"], parameters["top_k"], parameters["repetition_penalty"]) == (1.0, -1, 1.0)
        assert (parameters["stop_token_ids"], parameters["ignore_eos"]) == ([7], False)
        assert asked["session_id"] == "s1"
        headers = next(headers for path, _, headers in reversed(double.heard) if path == "/generate")
        assert headers["X-Session-ID"] == "s1"

    check(folder, body, session_header="X-Session-ID")


def test_without_stop_tokens_the_models_own_end_does_not_stop_it(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        completion = await replica.generate(prompt(1), sampling(200), SESSION)
        assert (completion.finish, len(completion.tokens_T)) == ("length", 200)
        assert heard(double, "/generate")[-1]["sampling_params"]["ignore_eos"]

    check(folder, body)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_after_temperature_though_the_servers_of_a_prompt_are_before_it(
    folder: Path, temperature: float
) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        scores = await replica.score(prompt(2), temperature=temperature)
        np.testing.assert_allclose(scores.logprobs_T, tiny.reference(0, prompt(2), temperature), atol=1e-4)
        assert len(heard(double, "/generate")) == 3  # two of them were asked for when it connected

    check(folder, body)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_shortest_prompts_have_scores_too(folder: Path, length: int, temperature: float) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        scores = await replica.score(prompt(2, length), temperature=temperature)
        np.testing.assert_allclose(scores.logprobs_T, tiny.reference(0, prompt(2, length), temperature), atol=1e-4)
        with pytest.raises(EngineError, match="token_ids is empty"):
            await replica.score(prompt(2, 0), temperature=temperature)

    check(folder, body)


def test_a_refusal_says_what_is_refused_and_that_nobody_else_need_be_asked(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        with pytest.raises(EngineError, match="longer than the model's context") as raised:
            await replica.generate(prompt(1, 5000), sampling(), SESSION)
        assert raised.value.evidence["status"] == 400
        with pytest.raises(EngineError, match="sglang /model_info: 401 Unauthorized"):
            async with serving(double) as url:
                stranger = _replica("sglang", url, folder, token="wrong")
                try:
                    await stranger.statistics()
                finally:
                    await stranger.__aexit__(None, None, None)

    check(folder, body)


def test_a_request_that_is_given_up_is_aborted_by_name(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        request = await begun(replica, double)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        while double.scheduler.running:
            await clock.sleep(0.002)
        assert heard(double, "/abort_request") == [{"rid": heard(double, "/generate")[-1]["rid"]}]

    check(folder, body)


# --- what a server must be -----------------------------------------------------------------------------


def _replica(name: str, url: str, folder: Path, *, token: str | None = None, overlap: bool = True) -> SglangReplica:
    receiver = Receiver(label="another", base=folder, directory=folder.parent)
    return SglangReplica(name, url, token, version=Version(number=4, digest="d"), receiver=receiver, overlap=overlap)


def test_a_server_that_was_started_without_a_version_is_given_ours_and_keeps_it(folder: Path) -> None:
    async def main() -> None:
        double = Double(folder)
        async with serving(double) as url:
            async with _replica("first", url, folder) as replica:
                assert (await replica.statistics()).version == Version(number=4, digest="d")
            double.scheduler.version = "5:e"
            async with _replica("second", url, folder) as replica:
                completion = await replica.generate(prompt(1), sampling(), SESSION)
                assert completion.versions_T.tolist() == [5] * 8
                double.scheduler.version = "default"  # somebody restarted it
                assert (await replica.statistics()).version.number == -1
                with pytest.raises(EngineError, match="unknown version 'default'"):
                    await replica.generate(prompt(1), sampling(), SESSION)

    clock.run(main())


def test_a_server_whose_log_probabilities_are_before_temperature_is_refused(folder: Path) -> None:
    async def body(replica: SglangReplica, double: Double) -> None:
        raise AssertionError("connected")

    with pytest.raises(EngineError, match="start it without SGLANG_RETURN_ORIGINAL_LOGPROB"):
        check(folder, body, faults=Faults(raw_logprobs=True))


def test_a_server_that_overlaps_steps_is_refused_where_the_configuration_says_that_it_does_not(folder: Path) -> None:
    async def main() -> None:
        async with serving(Double(folder)) as url, _replica("eager", url, folder, overlap=False):
            raise AssertionError("connected")

    with pytest.raises(EngineError, match="--disable-overlap-schedule"):
        clock.run(main())


def test_a_server_that_was_left_paused_is_woken(folder: Path) -> None:
    async def main() -> None:
        double = Double(folder)
        async with serving(double) as url:
            async with _replica("first", url, folder) as replica:
                await replica.pause(InFlight.HOLD)
            async with _replica("second", url, folder) as replica:
                assert len((await replica.generate(prompt(1), sampling(), SESSION)).tokens_T) == 8

    clock.run(main())
