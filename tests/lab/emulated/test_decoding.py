"""A stride of the decoding requests is its steps one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lab.emulated.books import prompt
from muster.engine.phases import RequestTime
from muster.lab.emulated.decoding import Decoding
from muster.lab.emulated.request import EmulatedRequest
from muster.types import Sampling, Session

Lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(2, 30)), min_size=1, max_size=8)


def request(name: str, length: int, reply: int) -> EmulatedRequest:
    made = EmulatedRequest(
        name, prompt(length), Sampling(), Session(id=name), lambda completion: None, RequestTime(0.0)
    )
    made.reply, made.made = prompt(reply, 1), 1
    return made


def blocks(requests: list[EmulatedRequest], block: int, more: int = 0) -> int:
    return sum(-(-(len(r.prompt) + r.made + more) // block) for r in requests)


@given(lengths=Lengths, block=st.sampled_from([1, 3, 16]), before=st.integers(0, 40), steps=st.integers(0, 50))
def test_blocks_for_more_steps_are_what_the_lengths_need(
    lengths: list[Any], block: int, before: int, steps: int
) -> None:
    decoding = Decoding(block)
    decoding._steps = before
    members = [request(str(i), length, reply) for i, (length, reply) in enumerate(lengths)]
    for member in members:
        decoding.join(member)
    assert decoding.blocks_for(steps) == blocks(members, block, steps) - blocks(members, block)
    fitting = decoding.steps_within(decoding.blocks_for(steps), steps + 5)
    assert decoding.blocks_for(fitting) <= decoding.blocks_for(steps) <= decoding.blocks_for(fitting + 1)


@given(lengths=Lengths, leaving=st.integers(0, 7))
def test_each_ends_with_its_last_token_and_who_left_never_does(lengths: list[Any], leaving: int) -> None:
    decoding = Decoding(16)
    members = [request(str(i), length, reply) for i, (length, reply) in enumerate(lengths)]
    for member in members:
        decoding.join(member)
    left = members[leaving % len(members)]
    decoding.leave(left)
    ended: list[EmulatedRequest] = []
    while decoding.rows:
        for member in decoding.advance(decoding.steps_to_end()):
            assert member.reply is not None
            assert member.made == len(member.reply)
            decoding.leave(member)
            ended.append(member)
    by_length = sorted(range(len(members)), key=lambda index: lengths[index][1])
    assert ended == [members[index] for index in by_length if members[index] is not left]
    assert decoding.context == 0
    assert left.made == 1
