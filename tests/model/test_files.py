"""Whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.model.files import whole_directory


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with whole_directory(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_directory(tmp_path / "target") as folder:
        (folder / "a").write_text("1")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_whoever_finishes_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_directory(target) as folder:
        (folder / "a").write_text("late")
        target.mkdir()
        (target / "a").write_text("first")
    assert (target / "a").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
