from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.rollout.sameness import Sameness, compare, normalised


@pytest.mark.parametrize(
    ("recorded", "again"),
    [
        ("Sun Nov 29 23:45:01 UTC 2026", "Mon Nov 30 01:02:03 UTC 2026"),
        ("-rw-r--r-- 1 root root 5 Nov 29 23:45 a", "-rw-r--r-- 1 root root 5 Jan  3 01:02 a"),
        ("2026-11-29T23:45:01.5Z started", "2026-12-01T00:00:00Z started"),
        ("2026-11-29 23:45:01,123 INFO x", "2026-11-30 03:05:01,999 INFO x"),
        ("Date:   Sun Nov 29 23:45:01 2026 +0000", "Date:   Tue Dec 1 01:45:01 2026 +0000"),
        ("[1] 4711", "[1] 99"),
        ("killed process 123", "killed process 4567"),
        ("/tmp/tmp.a1B2c3D4e5 made", "/tmp/tmp.ZZZZZZZZZZ made"),
        ("<object at 0x7f12ab34cd56>", "<object at 0x7fffffffffff>"),
        ("1 passed in 0.12s", "1 passed in 1.3s"),
        ("real 0m0.005s", "real 0m1.205s"),
        ("1764459901", "1764460000.25"),
        ("bash: line 1:    17 Killed   sleep 100", "bash: line 3:   230 Killed   sleep 100"),
    ],
)
def test_what_honest_runs_may_differ_in_is_masked(recorded: str, again: str) -> None:
    assert compare(recorded, again) is Sameness.SAME


@pytest.mark.parametrize(
    ("recorded", "again"),
    [
        ("total 12", "total 13"),
        ("exit code 1", "exit code 2"),
        ("a.txt\nb.txt", "a.txt"),
        ("port 8000", "port 8001"),
        ("1 passed in 0.1s", "2 passed in 0.1s"),
    ],
)
def test_other_numbers_and_words_count(recorded: str, again: str) -> None:
    assert compare(recorded, again) is Sameness.DIFFERENT


@given(st.text())
def test_a_text_is_exactly_itself_and_masking_twice_changes_nothing(text: str) -> None:
    assert compare(text, text) is Sameness.EXACT
    assert normalised(normalised(text)) == normalised(text)
