from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.publications import in_memory
from muster.errors import PublicationError
from muster.publish.chain import ChainExporter
from muster.publish.transports import retire
from muster.transport.files import reap

ARRAYS = {"b": np.arange(6, dtype=np.uint16).reshape(2, 3), "a": np.array([16256], dtype=np.uint16)}


def exporter(tmp_path, **settings) -> ChainExporter:
    shm = tmp_path / "shm"
    shm.mkdir(exist_ok=True)
    return in_memory(shm, fallback=tmp_path / "files", label="run/1", **settings)


def export(made: ChainExporter, number: int = 1):
    return made.export(ARRAYS, number=number, digest="d", dtype="bfloat16")


def files(tmp_path) -> list[str]:
    return sorted(p.name for place in ("shm", "files") for p in (tmp_path / place).glob("*"))


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_what_is_written_is_a_safetensors_file_of_the_same_bits(tmp_path):
    publication = export(exporter(tmp_path))
    state = load_file(publication.location)
    assert state["a"].dtype == torch.bfloat16 and state["a"].item() == 1.0
    assert (state["b"].view(torch.uint16).numpy() == ARRAYS["b"]).all()
    assert publication.version.number == 1 and publication.version.digest == "d"
    assert publication.size_bytes == Path(publication.location).stat().st_size
    assert publication.transport == "memory" and publication.dtype == "bfloat16"


def test_fp32_weights_are_published_as_they_are(tmp_path):
    publication = exporter(tmp_path).export({"w": np.ones((2, 2), np.float32)}, number=0, digest="d", dtype="float32")
    assert load_file(publication.location)["w"].dtype == torch.float32


def test_the_name_says_run_and_owner(tmp_path):
    export(exporter(tmp_path))
    assert files(tmp_path) == [f"muster-run_1-{os.getpid()}-v1.safetensors"]


def test_only_the_last_files_of_a_run_stay(tmp_path):
    made = exporter(tmp_path)
    for number in (3, 4, 5, 2):  # 2: a resumed run counts from its checkpoint
        export(made, number)
    assert [name.rsplit("-v", 1)[1] for name in files(tmp_path)] == ["2.safetensors", "5.safetensors"]


def test_an_open_file_survives_its_removal(tmp_path):
    publication = export(exporter(tmp_path))
    mapped = load_file(publication.location)
    retire(publication)
    retire(publication)
    assert files(tmp_path) == [] and mapped["a"].item() == 1.0


def test_clearing_removes_this_run_and_no_other(tmp_path):
    mine, other = exporter(tmp_path), exporter(tmp_path, owner_pid=1)
    export(mine)
    export(other)
    mine.clear()
    assert files(tmp_path) == ["muster-run_1-1-v1.safetensors"]


def test_reaping_removes_what_dead_runs_left_and_half_written_files_too(tmp_path):
    alive, dead = exporter(tmp_path), exporter(tmp_path, owner_pid=dead_pid())
    export(alive)
    left = export(dead)
    half = f"{left.location}.part".replace("-v1", "-v2")
    Path(half).write_bytes(b"half")
    (tmp_path / "shm" / "someone-elses").write_text("stays")
    reaped = reap(tmp_path / "shm")
    assert sorted(map(str, reaped)) == sorted([left.location, half])
    assert "someone-elses" in files(tmp_path) and len(files(tmp_path)) == 2
    assert reap(tmp_path / "shm") == []


def test_without_room_in_shared_memory_the_run_directory_takes_it(tmp_path):
    publication = export(exporter(tmp_path, spare_bytes=1 << 60))
    assert publication.location.startswith(str(tmp_path / "files")) and load_file(publication.location)


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    made = in_memory(tmp_path / "missing", fallback=tmp_path / "file" / "below")
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(PublicationError, match="below"):
        export(made)


def test_nothing_half_written_is_left_when_writing_fails(tmp_path):
    made = exporter(tmp_path)
    (tmp_path / "shm" / f"muster-run_1-{os.getpid()}-v1.safetensors").mkdir()  # rename onto it fails
    with pytest.raises(PublicationError):
        export(made)
    assert [name for name in files(tmp_path) if name.endswith(".part")] == []
