from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.verifier.reward import Problem, criteria, parse


@pytest.mark.parametrize(
    ("json_file", "text_file", "expected"),
    [
        (None, b"1\n", 1.0),
        (None, b" 0.25 ", 0.25),
        (b"1", None, 1.0),
        (b'{"reward": 0.5, "style": 0}', None, 0.5),
        (b'{"a": 1, "b": 0}', None, 0.5),
        (b"0", b"1", 0.0),  # the JSON file wins
        (None, None, Problem.MISSING),
        (None, b"", Problem.EMPTY),
        (None, b" \n", Problem.EMPTY),
        (b"", b"1", Problem.EMPTY),
        (None, b"yes", Problem.NOT_NUMERIC),
        (None, b"nan", Problem.NOT_FINITE),
        (None, b"inf", Problem.NOT_FINITE),
        (b"NaN", None, Problem.NOT_FINITE),
        (b"1e999", None, Problem.NOT_FINITE),
        (b"9" * 400, None, Problem.NOT_FINITE),
        (b"true", None, Problem.NOT_NUMERIC),
        (b"[1]", None, Problem.NOT_NUMERIC),
        (b"{}", None, Problem.NOT_NUMERIC),
        (b'{"reward": 1, "other": "x"}', None, Problem.NOT_NUMERIC),
        (b'{"reward": 1, "other": NaN}', None, Problem.NOT_FINITE),
        (b"{", None, Problem.NOT_NUMERIC),
        (b"[" * 100_000, None, Problem.NOT_NUMERIC),
        (None, b"\xff\xfe", Problem.NOT_NUMERIC),
    ],
)
def test_a_reward_file_gives_a_finite_number_or_its_problem(
    json_file: bytes | None, text_file: bytes | None, expected: float | Problem
) -> None:
    assert parse(json_file, text_file) == expected


@given(st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.binary()))
def test_no_content_raises_or_gives_an_infinite_reward(json_file: bytes | None, text_file: bytes | None) -> None:
    reward = parse(json_file, text_file)
    assert isinstance(reward, Problem) or math.isfinite(reward)


@given(st.one_of(st.none(), st.binary()))
def test_criteria_are_there_only_with_a_reward(json_file: bytes | None) -> None:
    if isinstance(parse(json_file, None), Problem):
        assert criteria(json_file) == {}


def test_the_members_of_an_object_are_its_criteria() -> None:
    assert criteria(b'{"reward": 1, "style": 0.5}') == {"reward": 1.0, "style": 0.5}
    assert criteria(b"1") == {}
    assert criteria(b'{"reward": "x"}') == {}
