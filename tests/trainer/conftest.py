from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainer.tiny import write_tiny


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are so small that threads only wait for each other, for seconds where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def model(tmp_path_factory) -> Path:
    """The tiny model's folder, which nobody writes to."""
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")
