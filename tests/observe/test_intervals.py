from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.observe.intervals import Labelled, clip, flatten, overlap_s, totals, union

EPOCH = 1_700_000_000.0
instants = st.floats(0.0, 100.0).map(lambda t: EPOCH + t)
spans = st.lists(
    st.tuples(instants, instants, st.sampled_from("abc")).map(lambda s: Labelled(min(s[:2]), max(s[:2]), s[2])),
    max_size=30,
)


@given(spans, instants, instants)
def test_pieces_tile_the_interval_whatever_the_spans(given_spans: list[Labelled[str]], a: float, b: float) -> None:
    start, end = min(a, b), max(a, b)
    pieces = flatten(given_spans, start, end, "fill")
    assert sum(totals(pieces).values()) == pytest.approx(end - start, abs=1e-6)
    if pieces:
        assert pieces[0].start == start
        assert pieces[-1].end == end
        assert all(left.end == right.start and left.label != right.label for left, right in pairwise(pieces))


@given(spans)
def test_an_instant_has_the_label_of_the_span_that_began_last(given_spans: list[Labelled[str]]) -> None:
    for piece in flatten(given_spans, EPOCH, EPOCH + 100, "fill"):
        middle = (piece.start + piece.end) / 2
        covering = [s for s in given_spans if s.start <= middle < s.end]
        latest = max((s.start for s in covering), default=None)
        expected = {s.label for s in covering if s.start == latest} or {"fill"}
        assert piece.label in expected


def test_a_nested_span_interrupts_the_outer_one() -> None:
    pieces = flatten([Labelled(0, 10, "outer"), Labelled(3, 5, "inner")], 0, 12, "gap")
    assert pieces == (
        Labelled(0, 3, "outer"),
        Labelled(3, 5, "inner"),
        Labelled(5, 10, "outer"),
        Labelled(10, 12, "gap"),
    )


def test_an_empty_interval_has_no_pieces() -> None:
    assert flatten([Labelled(0, 1, "a")], 5, 5, "gap") == ()
    assert flatten([Labelled(0, 1, "a")], 6, 5, "gap") == ()


def test_union_joins_what_touches_and_forgets_what_is_empty() -> None:
    assert union([(3, 4), (0, 1), (1, 2), (5, 5), (3.5, 3.6)]) == [(0, 2), (3, 4)]


def test_clip_and_overlap_measure_the_common_part() -> None:
    left, right = [(0.0, 2.0), (4.0, 6.0)], [(1.0, 5.0), (7.0, 8.0)]
    assert overlap_s(left, right) == 2.0
    assert clip(left, 1.0, 4.5) == [(1.0, 2.0), (4.0, 4.5)]
