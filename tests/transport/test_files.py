from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muster.transport.files import file_name, reap, roomy, whole_file


def test_nobody_sees_a_file_before_it_is_whole(tmp_path):
    path = tmp_path / "sub" / "f"
    with whole_file(path) as file:
        file.write(b"half")
        assert not path.exists()
    assert path.read_bytes() == b"half" and [p.name for p in path.parent.iterdir()] == ["f"]


def test_an_error_leaves_the_file_before_and_nothing_else(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), whole_file(path) as file:
        file.write(b"new")
        raise OSError("full")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_killed_between_write_and_rename_it_leaves_what_the_next_process_removes(tmp_path):
    code = f"""
import os, pathlib
from muster.transport.files import whole_file, file_name
with whole_file(pathlib.Path({str(tmp_path)!r}) / file_name("r", os.getpid(), 3)) as file:
    file.write(b"half"); file.flush(); os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".part")
    assert reap(tmp_path) == [left] and not left.exists()


def test_files_of_the_living_and_of_others_stay(tmp_path):
    for name in (file_name("r", os.getpid(), 1), "muster-odd", "else"):
        (tmp_path / name).touch()
    assert reap(tmp_path) == []


def test_a_full_shared_memory_is_passed_over(tmp_path):
    assert roomy(tmp_path, 10) == tmp_path
    assert roomy(tmp_path, 10, spare_bytes=1 << 60) == Path(tempfile.gettempdir())


def test_what_cannot_be_removed_stops_nobody(tmp_path):
    """In a folder where everyone may write, what a dead process of somebody else left is not ours to remove."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    theirs, ours = (tmp_path / file_name("r", process.pid, number) for number in (1, 2))
    theirs.mkdir()  # unlinking it fails, whoever we are
    ours.touch()
    assert reap(tmp_path) == [ours] and theirs.exists()
