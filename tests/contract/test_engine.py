"""Contract of every engine replica, the fake included: requests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tiny_llama as tiny
from contract.engine_rigs import EMULATED, VOCABULARY, FakeRig, Rig, T
from contract.engine_steps import CONFIG, Check, agrees, prompt, running, sampling, session, whole
from muster import clock
from muster.engine.embedded.launch import launch
from muster.engine.pieces import Pieces, Streaming, pieces_of
from muster.engine.port import InFlight, Replica
from muster.errors import EngineError
from muster.lab.emulated.replica import EmulatedReplica
from muster.types import DeviceState, Session


def test_every_sampled_token_has_a_log_probability_and_a_version(check: Check) -> None:
    async def body(rig: Rig) -> None:
        version = (await rig.replica.statistics()).version.number
        completion = await rig.replica.generate(prompt(1), sampling(12), session("a"))
        assert completion.finish == "length"
        assert len(completion.tokens_T) == len(completion.logprobs_T) == 12
        assert completion.versions_T.tolist() == [version] * 12
        agrees(rig, prompt(1), completion, version)

    check(body)


def test_a_reply_in_pieces_is_a_whole_reply(check: Check) -> None:
    async def body(rig: Rig) -> None:
        version = (await rig.replica.statistics()).version.number
        pieces, came = Pieces(), asyncio.Event()

        async def collect() -> None:
            async for piece in pieces_of(rig.replica, prompt(30), sampling(400), session("pieces")):
                pieces.add(piece)
                came.set()

        collecting = asyncio.create_task(collect())
        await running(rig.replica, 1)
        if isinstance(rig.replica, Streaming):
            await rig.replica.pause(InFlight.HOLD)  # it cannot end before a piece came
            await came.wait()
            assert not pieces.complete
            await rig.replica.resume()
        await collecting
        assert pieces.complete
        assert (pieces.completion.finish, len(pieces.completion.tokens_T)) == ("length", 400)
        agrees(rig, prompt(30), pieces.completion, version)

    check(body)


def test_a_stop_token_ends_the_completion_and_is_part_of_it(check: Check) -> None:
    async def body(rig: Rig) -> None:
        stops = tuple(range(VOCABULARY))
        completion = await rig.replica.generate(prompt(2), sampling(12, stop_tokens=stops), session("b"))
        assert (completion.finish, len(completion.tokens_T)) == ("stop", 1)

    check(body)


def test_siblings_that_arrive_together_compute_their_prompt_once(check: Check) -> None:
    async def body(rig: Rig) -> None:
        before = await rig.replica.statistics()
        tokens = prompt(3, 200)
        siblings = [rig.replica.generate(tokens, sampling(), Session(id=f"c{i}", group="c")) for i in range(4)]
        completions = await asyncio.gather(*siblings)
        shared = whole(rig, 199)
        assert sorted(c.cached_tokens for c in completions)[1:] == [shared] * 3
        for completion in completions:
            agrees(rig, tokens, completion, before.version.number)
        after = await rig.replica.statistics()
        assert after.prompt_tokens - before.prompt_tokens == 800
        assert after.cached_tokens - before.cached_tokens >= 3 * shared
        assert after.generated_tokens - before.generated_tokens == 40

    check(body)


def test_the_next_turn_of_a_session_starts_from_its_cache(check: Check) -> None:
    async def body(rig: Rig) -> None:
        first = await rig.replica.generate(prompt(4), sampling(), session("d"))
        tokens = np.concatenate([prompt(4), first.tokens_T, prompt(5, 30)])
        second = await rig.replica.generate(tokens, sampling(), session("d"))
        assert second.cached_tokens >= whole(rig, 109)
        agrees(rig, tokens, second, int(second.versions_T[0]))

    check(body)


def test_a_held_request_goes_on_after_the_pause(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(6), sampling(400), session("e")))
        await running(rig.replica, 1)
        pause = await rig.replica.pause(InFlight.HOLD)
        assert (pause.held, pause.aborted) == (1, 0)
        assert await rig.replica.pause(InFlight.HOLD) == pause
        await clock.sleep(0.3)
        assert not request.done()
        await rig.replica.resume()
        await rig.replica.resume()
        completion = await request
        assert len(completion.tokens_T) == 400
        assert completion.paused_s >= 0.29
        agrees(rig, prompt(6), completion, int(completion.versions_T[0]))

    check(body)


def test_a_finishing_pause_waits_for_what_runs_and_holds_back_what_comes(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(7), sampling(300), session("f")))
        await running(rig.replica, 1)
        pausing = asyncio.create_task(rig.replica.pause(InFlight.FINISH))
        await clock.sleep(0.02)
        late = asyncio.create_task(rig.replica.generate(prompt(8), sampling(5), session("g")))
        assert (await pausing).finished == 1
        assert len((await request).tokens_T) == 300
        await clock.sleep(0.1)
        assert not late.done()
        await rig.replica.resume()
        assert len((await late).tokens_T) == 5

    check(body)


def test_an_aborting_pause_hands_back_the_tokens_so_far(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(9), sampling(500), session("h")))
        await running(rig.replica, 1)
        assert (await rig.replica.pause(InFlight.ABORT)).aborted == 1
        completion = await request
        await rig.replica.resume()
        assert completion.finish == "abort"
        assert 0 < len(completion.tokens_T) < 500
        agrees(rig, prompt(9), completion, int(completion.versions_T[0]))

    check(body)


def test_cancelling_a_request_frees_its_stream(check: Check) -> None:
    async def body(rig: Rig) -> None:
        request = asyncio.create_task(rig.replica.generate(prompt(13), sampling(800), session("k")))
        await running(rig.replica, 1)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        await running(rig.replica, 0)

    check(body)


def test_more_requests_than_streams_wait_their_turn(check: Check) -> None:
    async def body(rig: Rig) -> None:
        requests = [rig.replica.generate(prompt(20 + i), sampling(5), session(f"l{i}")) for i in range(100)]
        completions = await asyncio.gather(*requests)
        assert all(len(c.tokens_T) == 5 for c in completions)
        assert max(c.queue_s for c in completions) > 0

    check(body)


def test_a_prompt_that_does_not_fit_is_refused(check: Check) -> None:
    async def body(rig: Rig) -> None:
        for tokens in (prompt(14, 0), prompt(14, 5000)):
            with pytest.raises(EngineError, match="token_ids"):
                await rig.replica.generate(tokens, sampling(), session("m"))

    check(body)


def test_device_intervals_tell_every_state_without_gap_or_overlap(check: Check) -> None:
    async def body(rig: Rig) -> None:
        await rig.replica.statistics()
        started = clock.now()
        await rig.replica.generate(prompt(15), sampling(20), session("n"))
        await rig.replica.pause(InFlight.HOLD)
        await clock.sleep(0.05)
        await rig.replica.resume()
        intervals = (await rig.replica.statistics()).intervals
        for left, right in pairwise(intervals):
            assert left.end == right.start
            assert left.state != right.state
        assert {DeviceState.DECODE, DeviceState.PUBLISH_PAUSE} <= {i.state for i in intervals}
        assert intervals[0].start <= started + 0.05
        assert intervals[-1].end <= clock.now()

    check(body)


def test_a_dead_replica_fails_pending_and_later_calls_at_once(tmp_path: Path) -> None:
    async def dies(replica: Replica, kill: Callable[[], None]) -> None:
        request = asyncio.create_task(replica.generate(prompt(16), sampling(900), session("o")))
        await running(replica, 1)
        kill()
        async with clock.timeout(2):
            with pytest.raises(EngineError):
                await request
            with pytest.raises(EngineError, match="dead"):
                await replica.score(prompt(16), temperature=T)

    async def on_fake() -> None:
        replica = FakeRig().replica
        await dies(replica, replica.crash)

    async def on_process() -> None:
        async with launch(CONFIG, tiny.write_model(tmp_path / "model"), "dying") as replica:
            (pid,) = _children()
            await dies(replica, lambda: os.kill(pid, signal.SIGKILL))

    async def on_emulated() -> None:
        replica = EmulatedReplica("emulated", EMULATED)
        await dies(replica, replica.crash)

    clock.run_virtual(on_fake())
    clock.run_virtual(on_emulated())
    clock.run(on_process())


def _children() -> set[int]:
    """Engine processes named `dying` that this process started."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(status[1]) == os.getpid() and b"dying" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found
