from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.publications import export, history, in_folder, same, stepped, weights
from muster.errors import PublicationError
from muster.publish.chain import ChainExporter
from muster.publish.payload import Payload
from muster.publish.places import FolderPlace
from muster.transport.adapter import Adapter
from muster.transport.files import file_name, on_this_host
from muster.transport.receive import Receiver


def names(folder: Path) -> list[str]:
    return sorted(path.name.rsplit("-", 1)[1] for path in folder.iterdir())


def forms(exporter: ChainExporter, versions: list, first: int = 0) -> str:
    return "".join(export(exporter, arrays, first + n).form[0] for n, arrays in enumerate(versions))


class FullPlace(FolderPlace):
    """A folder that takes so many more files."""

    def __init__(self, folder: Path, room: int) -> None:
        super().__init__(folder)
        self.room = room

    def write(self, name: str, payload: Payload) -> str:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        self.room -= 1
        return super().write(name, payload)


class StubbornPlace(FolderPlace):
    """A folder that removes nothing while it is `stuck`."""

    stuck = True

    def remove(self, name: str) -> None:
        if self.stuck:
            raise PermissionError(name)
        super().remove(name)


@pytest.mark.parametrize(("every", "expected"), [(1, "wwwwww"), (2, "wdwdwd"), (4, "wdddwd"), (99, "wddddd")])
def test_one_of_so_many_versions_is_an_anchor(tmp_path, every, expected):
    assert forms(in_folder(tmp_path, anchor_every=every), history(6)) == expected


def test_a_delta_says_what_it_builds_on(tmp_path):
    exporter, (old, new) = in_folder(tmp_path), history(2)
    first, second = export(exporter, old, 4), export(exporter, new, 9)
    assert first.form == "whole" and first.base is None
    assert second.form == "delta" and second.base == first.version
    assert second.size_bytes == Path(second.location).stat().st_size < 0.15 * first.size_bytes


def test_what_changed_too_much_or_has_another_layout_is_an_anchor(tmp_path):
    exporter, old = in_folder(tmp_path), weights()
    wider = stepped(old, 1) | {"more": np.zeros(3, np.uint16)}
    assert forms(exporter, [old, stepped(old, 1), weights(7), stepped(weights(7), 2)]) == "wdwd"
    assert forms(exporter, [wider, stepped(wider, 2)], first=4) == "wd"


def test_nothing_changed_is_a_small_delta(tmp_path):
    exporter = in_folder(tmp_path)
    export(exporter, weights(), 0)
    publication = export(exporter, weights(), 1)
    assert publication.form == "delta" and publication.size_bytes < 1500
    assert same(Receiver(label="e", directory=tmp_path).receive(publication).path, weights())


@pytest.mark.parametrize("number", [2, 1, 0])
def test_a_version_that_is_not_newer_is_an_anchor_and_the_chain_goes_on_from_it(tmp_path, number):
    """The same version again, for an engine that could not read it; or an earlier number, after a resume."""
    exporter, versions = in_folder(tmp_path), history(3)
    forms(exporter, versions)
    other = weights(5)
    again = export(exporter, other, number)
    following = export(exporter, stepped(other, 8), number + 1)
    assert again.form == "whole" and following.form == "delta"
    for publication, arrays in ((again, other), (following, stepped(other, 8))):
        assert same(Receiver(label="e", directory=tmp_path / "e").receive(publication).path, arrays)


@settings(max_examples=20, deadline=None)
@given(
    every=st.integers(1, 6),
    keep=st.integers(1, 4),
    again=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_every_version_that_is_kept_can_be_received_without_any_other(tmp_path_factory, every, keep, again):
    """again: how far the number goes back after each export (0, as it should)."""
    folder = tmp_path_factory.mktemp("chain")
    exporter = in_folder(folder, anchor_every=every, keep=keep)
    arrays, number, published = weights(), 0, []
    for seed, back in enumerate(again):
        arrays = stepped(arrays, seed)
        published.append((export(exporter, arrays, number), arrays))
        number = max(0, number + 1 - (back if back > 1 else 0))
        goes_back = any(back > 1 for back in again[: seed + 1])
        for publication, expected in published[-1:] if goes_back else published[-keep:]:
            receiver = Receiver(label="fresh", directory=folder / "e")
            assert same(receiver.receive(publication).path, expected)
            receiver.close()


def test_what_no_chain_needs_is_removed(tmp_path):
    exporter, versions = in_folder(tmp_path, anchor_every=4, keep=2), history(9)
    seen = []
    for number, arrays in enumerate(versions):
        export(exporter, arrays, number)
        seen.append([int(name[1:].split(".")[0]) for name in names(tmp_path)])
    assert seen == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [4, 5],
        [4, 5, 6],
        [4, 5, 6, 7],
        [4, 5, 6, 7, 8],
    ]


def test_whole_versions_stay_as_configured(tmp_path):
    forms(in_folder(tmp_path, form="whole", keep=3), history(6))
    assert names(tmp_path) == ["v3.safetensors", "v4.safetensors", "v5.safetensors"]


def test_after_a_full_disk_the_next_version_builds_on_the_last_that_was_written(tmp_path):
    place = FullPlace(tmp_path, room=2)
    exporter = ChainExporter(place, transport="checkpoint", label="r", form="delta")
    versions = history(4)
    export(exporter, versions[0], 0)
    kept = export(exporter, versions[1], 1)
    with pytest.raises(PublicationError, match=r"version 2: cannot write .* No space left"):
        export(exporter, versions[2], 2)
    assert same(Receiver(label="e", directory=tmp_path / "e").receive(kept).path, versions[1])
    place.room = 1
    following = export(exporter, versions[3], 3)
    assert following.form == "delta" and following.base == kept.version
    assert same(Receiver(label="e", directory=tmp_path / "e").receive(following).path, versions[3])


def test_what_cannot_be_removed_fails_no_publication_and_is_cleared_later(tmp_path):
    place = StubbornPlace(tmp_path)
    exporter = ChainExporter(place, transport="checkpoint", label="r", keep=1)
    assert forms(exporter, history(3)) == "www" and len(names(tmp_path)) == 3
    exporter.clear()
    assert len(names(tmp_path)) == 3
    place.stuck = False
    exporter.clear()
    assert names(tmp_path) == []


def test_the_trainer_may_write_into_its_arrays_after_the_export(tmp_path):
    exporter, arrays = in_folder(tmp_path), weights()
    export(exporter, arrays, 0)
    arrays["norm"][:5] += 1
    publication = export(exporter, arrays, 1)
    assert publication.form == "delta"
    assert same(Receiver(label="e", directory=tmp_path / "e").receive(publication).path, arrays)


def test_adapters_build_on_no_version_and_are_retired_like_whole_ones(tmp_path):
    exporter = in_folder(tmp_path, keep=2)
    matrices = {"a.lora_A": np.ones((1, 2), np.float32), "a.lora_B": np.ones((2, 1), np.float32)}
    for number in range(4):
        adapter = Adapter(base="b", scale=0.5)
        publication = exporter.export(matrices, number=number, digest="d", dtype="bfloat16", adapter=adapter)
    assert publication.form == "adapter" and publication.base is None
    assert names(tmp_path) == ["v2.safetensors", "v3.safetensors"]


def test_clearing_removes_this_run_from_any_process_and_no_other(tmp_path):
    mine, other = in_folder(tmp_path), in_folder(tmp_path, owner_pid=1)
    export(pickle.loads(pickle.dumps(mine)), weights(), 0)
    export(other, weights(), 0)
    mine.clear()
    assert [path.name for path in tmp_path.iterdir()] == [file_name("run", 1, 0)]


def test_reaping_removes_what_dead_runs_of_this_machine_left_and_nothing_of_another(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    for run in ("killed", "another"):
        place = FolderPlace(tmp_path)
        dead = ChainExporter(place, transport="checkpoint", label=on_this_host(run), owner_pid=process.pid)
        export(dead, weights(), 0)
    (tmp_path / file_name(on_this_host("killed"), process.pid, 3)).with_suffix(".safetensors.part").touch()
    stays = [
        file_name(on_this_host("run"), os.getpid(), 1),
        file_name("run.elsewhere", process.pid, 1),
        file_name("run", process.pid, 1),
        "config.json",
    ]
    for name in stays:
        (tmp_path / name).touch()
    assert len(in_folder(tmp_path).reap()) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stays)


def test_what_a_dead_run_left_and_is_not_ours_to_remove_stops_no_run(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    theirs = tmp_path / file_name(on_this_host("killed"), process.pid, 1)
    theirs.mkdir()  # removing it as a file fails, whoever we are
    assert in_folder(tmp_path).reap() == [] and theirs.exists()


def test_weights_that_changed_all_over_take_no_memory_for_a_delta_that_nobody_sends(tmp_path):
    exporter = in_folder(tmp_path)
    old = {"w": np.zeros((1 << 20,), np.uint16)}
    export(exporter, old, 0)
    new = {"w": old["w"] + 1}
    tracemalloc.start()
    try:
        publication = export(exporter, new, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert publication.form == "whole" and peak < 4 * old["w"].nbytes, "where positions alone are four times as long"
