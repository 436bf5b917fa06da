from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from observe.synthetic import SyntheticRun, write_run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SyntheticRun]:
    written = write_run(tmp_path / "journal.sqlite")
    yield written
    written.journal.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[SyntheticRun]:
    written = write_run(tmp_path / "killed.sqlite", complete=False)
    yield written
    written.journal.close()
