"""Replies of an emulated replica."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.emulated.books import prompt
from muster.lab.emulated.replies import ReplyScript, logprobs_of, made_up
from muster.lab.faults import INITIAL
from muster.types import Ints, Session, Version


@given(length=st.integers(1, 50), start=st.integers(0, 60))
def test_a_log_probability_depends_on_its_past_alone(length: int, start: int) -> None:
    tokens = prompt(length, 3)
    whole = logprobs_of(tokens, INITIAL, 0.7)
    assert whole[0] == 0
    assert (whole[1:] < 0).all()
    np.testing.assert_array_equal(whole[start:], logprobs_of(tokens, INITIAL, 0.7, start=start))
    np.testing.assert_array_equal(whole[: length // 2], logprobs_of(tokens[: length // 2], INITIAL, 0.7))


def test_log_probabilities_differ_by_version_and_temperature() -> None:
    tokens = prompt(20)
    one = logprobs_of(tokens, INITIAL, 0.7)
    assert not np.array_equal(one, logprobs_of(tokens, INITIAL, 0.8))
    assert not np.array_equal(one, logprobs_of(tokens, Version(number=0, digest="other"), 0.7))
    assert not np.array_equal(one, logprobs_of(tokens, Version(number=1, digest="initial"), 0.7))


def test_made_up_replies_differ_by_session_and_are_the_same_in_every_process() -> None:
    mine = made_up(prompt(30), 50, 64, salt="a")
    assert set(mine.tolist()) <= set(range(3, 64))
    assert not np.array_equal(mine, made_up(prompt(30), 50, 64, salt="b"))
    script = (
        "import numpy as np; from muster.lab.emulated.replies import made_up; "
        "print(made_up(np.random.default_rng(0).integers(3, 64, 30).astype(np.int32), 50, 64, salt='a').tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(mine.tolist())


class Said:
    """A session that appends what it is told, as an agent does."""

    def __init__(self, script: ReplyScript) -> None:
        self.script, self.tokens = script, prompt(20)

    def ask(self) -> Ints:
        return np.asarray(self.script(self.tokens, Session(id="s"), INITIAL))

    def keep(self, reply: Ints, observation: int) -> None:
        self.tokens = np.concatenate([self.tokens, reply, prompt(observation, 9)]).astype(np.int32)


def test_a_script_gives_each_turn_its_length_then_one_token() -> None:
    lengths = [5, 3, 8]
    said = Said(ReplyScript(lambda session, turn: lengths[turn] if turn < 3 else None))
    replies = []
    for _ in range(4):
        replies.append(said.ask())
        said.keep(replies[-1], 10)
    assert [len(r) for r in replies] == [5, 3, 8, 1]


def test_a_retry_says_the_same_and_an_aborted_reply_goes_on_where_it_was_cut() -> None:
    said = Said(ReplyScript(lambda session, turn: [7, 4][turn]))
    whole = said.ask()
    np.testing.assert_array_equal(said.ask(), whole)
    said.keep(whole[:3], 0)
    np.testing.assert_array_equal(said.ask(), whole[3:])
    said.keep(whole[3:], 5)
    assert len(said.ask()) == 4


def test_a_script_may_hold_the_tokens_themselves_and_forgets_a_session() -> None:
    said = Said(ReplyScript(lambda session, turn: [[9, 8], [7]][turn]))
    assert said.ask().tolist() == [9, 8]
    said.keep(np.array([9, 8]), 4)
    assert said.ask().tolist() == [7]
    said.script.forget("s")
    assert said.ask().tolist() == [9, 8]
