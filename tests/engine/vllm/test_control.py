"""Pause, commit and resume of a vLLM server, in every order and with every answer lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import numpy as np
import pytest

from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.engine.vllm.calls import Calls
from muster.engine.vllm.control import Control
from muster.errors import EngineError
from muster.types import Version

V0, V1 = Version(number=0, digest="zero"), Version(number=1, digest="one")
SLOW_S = 10.0


class Log:
    """A `control.Server` that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.slow: set[str] = set()
        self.fails: set[str] = set()  # once each
        self.digest = ""

    async def pause(self, in_flight: InFlight) -> None:
        await self._did(f"pause {in_flight}")

    async def resume(self) -> None:
        await self._did("resume")

    async def reset_cache(self, *, preempt: bool) -> None:
        await self._did("reset")

    async def change(self, version: Version) -> Version:
        await self._did("change")
        return Version(number=version.number, digest=self.digest or version.digest)

    async def label(self, number: int) -> None:
        await self._did(f"label {number}")

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._did(" ".join(["abort", *request_ids]))

    async def _did(self, what: str) -> None:
        self.asked.append(what)
        word = what.split()[0]
        await clock.sleep(SLOW_S if word in self.slow else 0)
        if word in self.fails:
            self.fails.remove(word)
            raise EngineError(f"{word} failed")


def made(calls: Calls | None = None) -> tuple[Log, Control]:
    log = Log()
    return log, Control("v", log, calls or Calls("v", 4, V0.number), V0)


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        await body

    clock.run_virtual(main())


async def given_up(call: Awaitable[object]) -> None:
    """As a client does whose deadline is over."""
    with pytest.raises(TimeoutError):
        async with clock.timeout(SLOW_S / 2):
            await call


@pytest.mark.parametrize(
    ("cache", "steps"),
    [
        (CachePolicy.KEEP, ["change", "label 1", "abort"]),
        (CachePolicy.SHARE, ["change", "label 1", "abort"]),
        (CachePolicy.RECOMPUTE, ["reset", "change", "label 1", "abort"]),
        (CachePolicy.FLUSH, ["reset", "change", "label 1", "abort"]),
    ],
)
def test_a_commit_changes_the_weights_and_then_the_label_in_a_pause(cache: CachePolicy, steps: list[str]) -> None:
    async def body() -> None:
        log, control = made()
        await control.pause(InFlight.HOLD)
        assert control.paused
        assert not control.gate.is_set()
        assert await control.commit(V1, cache) == V1
        await control.resume()
        assert control.gate.is_set()
        assert log.asked == ["pause hold", *steps, "resume"]
        assert control.salt == ("0" if cache is CachePolicy.SHARE else "1")

    run(body())


def test_a_commit_that_is_asked_again_while_the_first_goes_on_waits_for_its_end() -> None:
    async def body() -> None:
        log, control = made()
        log.slow = {"change", "label"}
        await control.pause(InFlight.HOLD)
        await given_up(control.commit(V1, CachePolicy.KEEP))
        assert await control.commit(V1, CachePolicy.KEEP) == V1
        assert log.asked == ["pause hold", "change", "label 1", "abort"], "once, and to its end"

    run(body())


def test_nothing_is_sampled_before_the_label_is_right() -> None:
    """A resume that overtakes a commit would give old labels to tokens of new weights."""

    async def body() -> None:
        log, control = made()
        log.slow = {"label"}
        await control.pause(InFlight.HOLD)
        await given_up(control.commit(V1, CachePolicy.KEEP))
        await control.resume()
        assert log.asked[-3:] == ["label 1", "abort", "resume"]

    run(body())


def test_a_label_that_failed_is_set_by_the_next_call_whichever_it_is() -> None:
    async def body() -> None:
        for again in ("commit", "resume"):
            log, control = made()
            log.fails = {"label"}
            await control.pause(InFlight.HOLD)
            with pytest.raises(EngineError, match="label failed"):
                await control.commit(V1, CachePolicy.KEEP)
            await (control.commit(V1, CachePolicy.KEEP) if again == "commit" else control.resume())
            assert log.asked[:5] == ["pause hold", "change", "label 1", "label 1", "abort"]

    run(body())


def test_a_cache_that_cannot_be_reset_leaves_the_old_weights() -> None:
    async def body() -> None:
        log, control = made()
        log.fails = {"reset"}
        await control.pause(InFlight.HOLD)
        with pytest.raises(EngineError, match="reset failed"):
            await control.commit(V1, CachePolicy.RECOMPUTE)
        assert control.version == V0
        assert "change" not in log.asked
        assert await control.commit(V1, CachePolicy.RECOMPUTE) == V1
        assert control.salt == "1"

    run(body())


def test_what_is_held_is_told_even_if_it_is_not_what_was_asked_for() -> None:
    async def body() -> None:
        log, control = made()
        log.digest = "other"
        await control.pause(InFlight.HOLD)
        assert await control.commit(V1, CachePolicy.KEEP) == Version(number=1, digest="other") == control.version

    run(body())


def test_without_a_pause_nothing_is_committed() -> None:
    async def body() -> None:
        log, control = made()
        with pytest.raises(EngineError, match="not paused"):
            await control.commit(V1, CachePolicy.KEEP)
        log.slow = {"pause"}
        await given_up(control.pause(InFlight.FINISH))
        with pytest.raises(EngineError, match="not paused"):
            await control.commit(V1, CachePolicy.KEEP)
        assert await control.commit(V0, CachePolicy.KEEP) == V0, "it is there already"

    run(body())


def test_a_pause_that_was_given_up_goes_on_and_is_the_next_ones_pause() -> None:
    async def body() -> None:
        log, control = made()
        log.slow = {"pause"}
        await given_up(control.pause(InFlight.FINISH))
        await control.pause(InFlight.FINISH)
        assert clock.now() == SLOW_S
        assert log.asked == ["pause finish"]

    run(body())


def test_a_pause_that_failed_opens_the_gate_and_can_be_tried_again() -> None:
    async def body() -> None:
        log, control = made()
        log.fails = {"pause"}
        with pytest.raises(EngineError, match="pause failed"):
            await control.pause(InFlight.HOLD)
        assert control.gate.is_set()
        assert not control.paused
        await control.pause(InFlight.HOLD)
        assert control.paused

    run(body())


def test_a_resume_ends_a_pause_that_still_waits_and_a_second_one_does_nothing() -> None:
    async def body() -> None:
        log, control = made()
        log.slow = {"pause"}
        waiting = asyncio.create_task(control.pause(InFlight.FINISH))
        await clock.sleep(1.0)
        await asyncio.gather(control.resume(), control.resume())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert control.gate.is_set()
        assert log.asked == ["pause finish", "resume"]
        log.slow = set()
        await control.pause(InFlight.HOLD)
        assert not control.gate.is_set()

    run(body())


def test_a_pause_that_meets_a_resume_under_way_is_a_pause_of_its_own() -> None:
    async def body() -> None:
        log, control = made()
        log.slow = {"resume"}
        await control.pause(InFlight.HOLD)
        resuming = asyncio.create_task(control.resume())
        await clock.sleep(1.0)
        await control.pause(InFlight.HOLD)
        await resuming
        assert log.asked == ["pause hold", "resume", "pause hold"]
        assert control.paused
        assert not control.gate.is_set()

    run(body())


def test_those_that_have_sampled_nothing_enter_again_after_a_commit() -> None:
    async def body() -> None:
        calls = Calls("v", 4, V0.number)
        log, control = made(calls)
        with (
            calls.of("new", np.array([1], np.int32)) as new,
            calls.of("old", np.array([1], np.int32)) as old,
            calls.of("outside", np.array([1], np.int32)),
            calls.inside_vllm(new),
            calls.inside_vllm(old),
        ):
            old.tokens.append(7)
            await control.pause(InFlight.HOLD)
            await control.commit(V1, CachePolicy.KEEP)
            assert log.asked[-1] == "abort new"
            assert new.enters_again()
            assert not old.enters_again()
            await control.resume()

    run(body())
