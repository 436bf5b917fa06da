"""Runs of tokens without copies: they are what the copies would be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lab.emulated.books import prompt
from muster.lab.emulated.run import TokenRun
from muster.types import Ints


def tokens(ids: list[int]) -> Ints:
    return np.array(ids, dtype=np.int32)


PIECES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5)


@given(pieces=PIECES, at=st.integers(0, 40), other=st.lists(st.integers(0, 2), max_size=30))
def test_a_run_is_the_concatenation_of_its_pieces(pieces: list[list[int]], at: int, other: list[int]) -> None:
    whole = [token for piece in pieces for token in piece]

    def run() -> TokenRun:
        made = TokenRun(tokens(pieces[0]))
        for piece in pieces[1:]:
            made.append(tokens(piece))
        return made

    assert run().tokens.tolist() == whole
    assert run().start(1) == tokens(whole[:1]).tobytes()
    shared = next(
        (i for i, (a, b) in enumerate(zip(whole, other, strict=False)) if a != b), min(len(whole), len(other))
    )
    assert run().common(tokens(other)) == shared
    at = min(at, len(whole))
    kept, rest = run(), run()
    kept.keep(at)
    head = rest.cut(at)
    assert (kept.tokens.tolist(), len(kept)) == (whole[:at], at)
    assert (head.tokens.tolist(), rest.tokens.tolist()) == (whole[:at], whole[at:])
    assert (len(head), len(rest)) == (at, len(whole) - at)


def test_slices_of_one_array_are_known_by_where_they_lie() -> None:
    ids = prompt(10_000)
    run = TokenRun(ids[100:6000])
    run.append(ids[6000:7000])
    assert run.lies_in(ids[100:8000]) == 6900
    assert run.lies_in(ids[100:6500]) == 6400
    assert run.lies_in(ids[101:8000]) == 0
    assert run.lies_in(ids.copy()[100:8000]) == 0
    assert run.common(ids[100:8000]) == run.common(ids.copy()[100:8000]) == 6900


def test_long_runs_that_lie_elsewhere_are_compared() -> None:
    ids = prompt(10_000)
    other = ids.copy()
    other[5000] += 1
    assert TokenRun(ids).common(other) == 5000
    assert TokenRun(ids[:6000]).common(ids[1:6001]) < 10
