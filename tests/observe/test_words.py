from __future__ import annotations

import pytest

from muster.observe import words
from muster.observe.palette import STAGE_COLOURS, STAGE_LETTERS, STATE_COLOURS, STATE_NAMES
from muster.types import DeviceState, Stage


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0042, "4.20 ms"),
        (75.0, "75.0 s"),
        (599, "599 s"),
        (1800, "30.0 min"),
        (7200, "2.00 h"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0, "0.0 %"), (1, "100 %"), (0.042, "4.2 %"), (0.0001, "< 0.1 %"), (0.9999, "100 %")],
)
def test_percent_never_shows_something_as_nothing(share: float | None, text: str) -> None:
    assert words.percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (12, "12"), (12345, "12,345"), (0.00421, "0.00421"), (2e-4, "2.0e-04"), (3.14159, "3.14")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_other_units() -> None:
    assert words.size(270_000_000) == "270 MB"
    assert words.clock(3725) == "1:02:05"
    assert words.clock(65) == "1:05"
    assert words.points(0.4) == "+40.0 points"
    assert words.plural(1, "batch") == "1 batch"
    assert words.plural(2, "batch") == "2 batches"
    assert words.plural(3, "graded trajectory") == "3 graded trajectories"


def test_every_stage_and_state_has_its_own_colour_name_and_letter() -> None:
    assert set(STAGE_COLOURS) == set(STAGE_LETTERS) == set(Stage)
    assert len(set(STAGE_COLOURS.values())) == len(Stage)
    assert len(set(STAGE_LETTERS.values())) == len(Stage)
    assert set(STATE_COLOURS) == set(STATE_NAMES) == set(DeviceState)
