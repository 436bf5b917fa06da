"""Counts of the requests inside a vLLM server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from muster.engine.port import InFlight
from muster.engine.vllm.calls import Call, Calls
from muster.errors import UserError
from muster.types import DeviceState, Version

V0 = Version(number=0, digest="d")


@dataclass
class Logprob:
    logprob: float


@dataclass
class Span:
    version: str
    start: int
    end: int


@dataclass
class Stats:
    queued_ts: float = 1.0
    scheduled_ts: float = 3.0
    first_token_ts: float = 4.0
    last_token_ts: float = 10.0


@dataclass
class Made:
    """A vLLM `CompletionOutput`, as far as it is read."""

    token_ids: list[int]
    finish_reason: str | None = None
    weight_versions: list[Span] | None = None
    logprobs: list[dict[int, Logprob]] = field(init=False)

    def __post_init__(self) -> None:
        self.logprobs = [{token: Logprob(-token / 10)} for token in self.token_ids]


@dataclass
class Output:
    outputs: list[Made]
    num_cached_tokens: int | None = None
    metrics: Any = field(default_factory=Stats)


def heard(calls: Calls, call: Call, *tokens: int, cached: int = 0, finish: str | None = None, **more: Any) -> None:
    calls.heard(call, Output([Made(list(tokens), finish, **more)], cached), now=0.0)


def prompt(*tokens: int) -> Any:
    return np.array(tokens, np.int32)


def counted(calls: Calls) -> Any:
    return calls.statistics(V0, kv_used_tokens=0, kv_capacity_tokens=64, preemptions=0, take_intervals=True)


def test_each_token_is_counted_once_with_the_label_under_which_it_was_read() -> None:
    calls = Calls("v", 2, number=3)
    with calls.of("a", prompt(1, 2, 3)) as call, calls.inside_vllm(call):
        heard(calls, call, 7, cached=2)
        calls.number = 4
        heard(calls, call, 8, 9)
        completion = call.completion("abort")
    assert completion.tokens_T.tolist() == [7, 8, 9]
    assert completion.versions_T.tolist() == [3, 4, 4]
    np.testing.assert_allclose(completion.logprobs_T, [-0.7, -0.8, -0.9], rtol=1e-6)
    assert completion.cached_tokens == 2
    statistics = counted(calls)
    assert (statistics.prompt_tokens, statistics.cached_tokens, statistics.generated_tokens) == (3, 2, 3)


def test_the_servers_own_spans_are_the_last_word() -> None:
    calls = Calls("v", 2, number=3)
    with calls.of("a", prompt(1)) as call, calls.inside_vllm(call):
        heard(calls, call, 5, 6)
        heard(calls, call, 7, finish="length", weight_versions=[Span("3", 0, 1), Span("4", 1, 3)])
    assert call.completion(call.finish).versions_T.tolist() == [3, 4, 4]
    assert call.finish == "length"


def test_times_are_split_at_the_servers_stamps() -> None:
    calls = Calls("v", 2, number=0)
    with calls.of("a", prompt(1)) as call, calls.inside_vllm(call):
        heard(calls, call, 5)
    call.paused_s, call.recompute_s = 1.5, 0.5
    completion = call.completion("stop")
    assert (completion.queue_s, completion.prefill_s, completion.decode_s) == (2.0, 1.0, 4.0)


def test_a_piece_has_the_new_tokens_alone() -> None:
    calls = Calls("v", 2, number=0)
    with calls.of("a", prompt(1)) as call, calls.inside_vllm(call):
        heard(calls, call, 5, 6, 7)
        assert call.completion("abort", start=2).tokens_T.tolist() == [7]


def test_an_id_is_used_by_one_request_at_a_time() -> None:
    calls = Calls("v", 2, number=0)
    with calls.of("a", prompt(1)), pytest.raises(UserError, match="in use"), calls.of("a", prompt(1)):
        pass
    with calls.of("a", prompt(1)):
        assert counted(calls).waiting == 1


def test_a_pause_tells_what_it_met_and_equal_prompts_count_once() -> None:
    calls = Calls("v", 4, number=0)
    with (
        calls.of("a", prompt(1, 2, 3)) as a,
        calls.of("b", prompt(1, 2, 3)) as b,
        calls.of("c", prompt(4)) as c,
        calls.inside_vllm(a),
        calls.inside_vllm(b),
        calls.inside_vllm(c),
    ):
        heard(calls, a, 7)
        heard(calls, b, 8, 9)
        before = calls.paused(now=0.0)
        pause = calls.met(InFlight.HOLD, before)
        assert (pause.held, pause.finished, pause.aborted) == (3, 0, 0)
        assert pause.held_tokens == 3 + 1 + 2, "c has sampled nothing: it has no keys and values that count"
        calls.recompute()
        assert counted(calls).recomputed_tokens == 6


@pytest.mark.parametrize(("in_flight", "counts"), [(InFlight.FINISH, (1, 2, 0)), (InFlight.ABORT, (1, 0, 2))])
def test_what_left_during_a_pause_finished_or_was_aborted(in_flight: InFlight, counts: tuple[int, int, int]) -> None:
    calls = Calls("v", 4, number=0)
    with calls.of("a", prompt(1)) as a, calls.inside_vllm(a):
        with calls.of("b", prompt(1)) as b, calls.of("c", prompt(1)) as c, calls.inside_vllm(b), calls.inside_vllm(c):
            before = calls.paused(now=0.0)
        pause = calls.met(in_flight, before)
    assert (pause.held, pause.finished, pause.aborted) == counts


def test_a_request_waits_through_a_pause_no_longer_than_it_was_there() -> None:
    calls = Calls("v", 4, number=0)
    with calls.of("early", prompt(1)) as early:
        began = early.arrived + 1.0
        calls.paused(began)
        with calls.of("late", prompt(1)) as late:
            late.arrived = began + 2.0
            calls.resumed(began + 3.0)
            assert (early.paused_s, late.paused_s) == (pytest.approx(3.0), pytest.approx(1.0))


def test_a_request_goes_in_again_once_and_only_while_it_has_sampled_nothing() -> None:
    calls = Calls("v", 4, number=0)
    with calls.of("a", prompt(1)) as a, calls.inside_vllm(a):
        assert not a.enters_again()
        calls.send_again(["a"])
        assert a.enters_again()
        assert not a.enters_again()
        calls.send_again(["a"])
        heard(calls, a, 5)
        assert not a.enters_again()


def test_the_device_is_seen_to_prefill_decode_and_idle() -> None:
    calls = Calls("v", 4, number=0)
    seen: list[DeviceState] = []
    with calls.of("a", prompt(1)) as call, calls.inside_vllm(call):
        seen.append(calls.state)
        heard(calls, call, 5)
        seen.append(calls.state)
    seen.append(calls.state)
    assert seen == [DeviceState.PREFILL, DeviceState.DECODE, DeviceState.IDLE]
