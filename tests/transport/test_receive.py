from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from app.publications import export, history, in_folder, in_memory, left, receiver, same, served, stepped, weights
from muster import clock
from muster.errors import PublicationError
from muster.transport.files import file_name
from muster.transport.receive import Receiver
from muster.transport.tensors import digest


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_every_version_of_a_run_arrives_and_one_file_of_it_stays(exporter_of, tmp_path, form):
    exporter, engine = exporter_of(form=form, anchor_every=4), receiver(tmp_path)
    for number, arrays in enumerate(history(7)):
        publication = export(exporter, arrays, number)
        received = engine.receive(publication)
        assert publication.form == ("whole" if form == "whole" or number % 4 == 0 else "delta")
        assert same(received.path, arrays)
        assert received.size_bytes == publication.size_bytes
        assert left(tmp_path) == [received.path.name]
    engine.close()
    assert left(tmp_path) == []


def test_asked_again_it_fetches_nothing(exporter_of, tmp_path):
    exporter, engine = exporter_of(), receiver(tmp_path)
    publication = export(exporter, weights(), 0)
    first, second = engine.receive(publication), engine.receive(publication)
    assert second.path == first.path and second.size_bytes == 0 and second.transfer_s == second.decode_s == 0


def test_a_restarted_receiver_walks_the_chain_back_to_its_anchor(exporter_of, tmp_path):
    exporter = exporter_of(anchor_every=100)
    versions = history(5)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions)]
    received = receiver(tmp_path).receive(publications[-1])
    assert publications[-1].form == "delta" and same(received.path, versions[-1])
    assert received.size_bytes == sum(p.size_bytes for p in publications)
    assert left(tmp_path) == [received.path.name]


def test_one_that_missed_versions_fetches_those_alone(exporter_of, tmp_path):
    exporter, engine, versions = exporter_of(anchor_every=100), receiver(tmp_path), history(5)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions[:2])]
    engine.receive(publications[1])
    publications += [export(exporter, arrays, number + 2) for number, arrays in enumerate(versions[2:])]
    received = engine.receive(publications[4])
    assert same(received.path, versions[4])
    assert received.size_bytes == sum(p.size_bytes for p in publications[2:])


def test_two_publications_in_a_row_are_both_right_and_so_is_going_back(exporter_of, tmp_path):
    exporter, engine, (first, second) = exporter_of(), receiver(tmp_path), history(2)
    one, two = export(exporter, first, 1), export(exporter, second, 2)
    assert same(engine.receive(one).path, first)
    assert same(engine.receive(two).path, second)
    assert same(engine.receive(one).path, first)


def test_many_receivers_at_once_get_the_same(exporter_of, tmp_path):
    exporter, versions = exporter_of(), history(3)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions)]
    engines = [Receiver(label=f"e{n}", directory=tmp_path) for n in range(4)]
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda e=e: paths.append(e.receive(publications[-1]).path)) for e in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4 and all(same(path, versions[-1]) for path in paths)


def test_fp32_travels_too(exporter_of, tmp_path):
    exporter, engine = exporter_of(), receiver(tmp_path)
    old = {"w": np.linspace(-1, 1, 3000, dtype=np.float32).reshape(3, 1000), "n": np.full(8, np.nan, np.float32)}
    new = {"w": old["w"].copy(), "n": old["n"]}
    new["w"][0, :20] += 1
    for number, arrays in enumerate((old, new)):
        publication = export(exporter, arrays, number, "float32")
        received = engine.receive(publication)
    assert publication.form == "delta" and received.path.stat().st_size > publication.size_bytes
    assert digest(new, "float32") == publication.version.digest and received.decode_s > 0


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_a_changed_byte_anywhere_is_an_error_or_harms_nothing_and_the_version_before_stays(tmp_path, form):
    exporter, (old, new) = in_folder(tmp_path / "there", form=form), history(2)
    first, second = export(exporter, old, 1), export(exporter, new, 2)
    path = Path(second.location)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    everywhere = [*range(0, header, 7), *range(header, len(content), max(1, len(content) // 60)), len(content) - 1]
    engine, caught = receiver(tmp_path), 0
    held = engine.receive(first).path
    for position in everywhere:
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        try:
            assert same(engine.receive(second).path, new)
            held = engine.receive(first).path  # a byte that means nothing: of the padding, or of a name not used
        except PublicationError:
            caught += 1
        assert same(held, old) and left(tmp_path) == [held.name], position
    assert caught > 0.9 * len(everywhere)
    path.write_bytes(content)
    assert same(engine.receive(second).path, new)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), link=st.sampled_from([0, 1]))
def test_whatever_the_bytes_are_a_fresh_receiver_says_so_or_has_the_version(tmp_path_factory, data, link):
    folder = tmp_path_factory.mktemp("any")
    exporter, versions = in_folder(folder / "there"), history(2)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions)]
    path = Path(publications[link].location)
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    where = st.one_of(st.integers(0, header + 20), st.integers(0, len(content) - 1))
    for position, value in data.draw(st.lists(st.tuples(where, st.integers(0, 255)), min_size=1, max_size=4)):
        content[position] = value
    path.write_bytes(content)
    engine = receiver(folder)
    try:
        assert same(engine.receive(publications[1]).path, versions[1])
    except PublicationError:
        assert left(folder) == []
    engine.close()


def test_what_is_held_and_was_changed_by_others_is_not_built_on_again(exporter_of, tmp_path):
    exporter, engine, versions = exporter_of(), receiver(tmp_path), history(2)
    held = engine.receive(export(exporter, versions[0], 0)).path
    held.write_bytes(held.read_bytes()[:-1] + b"?")
    publication = export(exporter, versions[1], 1)
    with pytest.raises(PublicationError, match="digest"):
        engine.receive(publication)
    assert same(engine.receive(publication).path, versions[1])


@pytest.mark.parametrize("form", ["whole", "delta"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_cut_short_is_an_error(tmp_path, form, share):
    exporter, (old, new) = in_folder(tmp_path / "there", form=form), history(2)
    engine = receiver(tmp_path)
    engine.receive(export(exporter, old, 1))
    publication = export(exporter, new, 2)
    content = Path(publication.location).read_bytes()
    Path(publication.location).write_bytes(content[: int(share * len(content))])
    with pytest.raises(PublicationError, match="cut short or corrupt") as caught:
        engine.receive(publication)
    assert publication.location in str(caught.value)  # not the copy, which is gone


def test_a_corrupt_link_of_the_chain_is_found_and_an_export_again_mends_it(tmp_path):
    exporter, versions = in_folder(tmp_path / "there"), history(3)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions)]
    anchor = Path(publications[0].location)
    content = bytearray(anchor.read_bytes())
    content[-1] ^= 1
    anchor.write_bytes(content)
    with pytest.raises(PublicationError, match="digest"):
        receiver(tmp_path).receive(publications[2])
    again = export(exporter, versions[2], 2)
    assert again.form == "whole" and same(receiver(tmp_path).receive(again).path, versions[2])


def test_a_missing_base_is_an_error_that_says_what_to_do(tmp_path):
    exporter = in_folder(tmp_path / "there")
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(history(2))]
    Path(publications[0].location).unlink()
    with pytest.raises(PublicationError, match="publish again"):
        receiver(tmp_path).receive(publications[1])
    assert left(tmp_path) == []


def test_another_version_under_the_address_is_an_error(tmp_path):
    exporter = in_folder(tmp_path / "there", form="whole")
    one, two = export(exporter, weights(1), 1), export(exporter, weights(2), 2)
    shutil.copy(one.location, two.location)
    with pytest.raises(PublicationError, match="wanted is"):
        receiver(tmp_path).receive(two)


def test_a_chain_that_turns_in_a_circle_ends(tmp_path):
    exporter, versions = in_folder(tmp_path / "there"), history(2)
    publications = [export(exporter, arrays, number) for number, arrays in enumerate(versions)]
    shutil.copy(publications[1].location, publications[0].location)
    with pytest.raises(PublicationError, match="wanted is"):
        receiver(tmp_path).receive(publications[1])


def test_what_was_received_and_tidied_away_is_fetched_again(exporter_of, tmp_path):
    exporter, engine, (old, new) = exporter_of(), receiver(tmp_path), history(2)
    engine.receive(export(exporter, old, 0)).path.unlink()
    assert same(engine.receive(export(exporter, new, 1)).path, new)


def test_from_memory_nothing_is_copied(tmp_path):
    exporter = in_memory(tmp_path)
    publication = exporter.export(weights(), number=1, digest=digest(weights(), "bfloat16"), dtype="bfloat16")
    engine = receiver(tmp_path)
    received = engine.receive(publication)
    assert received.path == Path(publication.location) and received.size_bytes == 0
    engine.close()
    assert received.path.exists() and left(tmp_path) == []


def test_from_memory_what_is_gone_cut_or_of_another_version_is_an_error(tmp_path):
    exporter = in_memory(tmp_path)
    publication = exporter.export(weights(), number=1, digest="d", dtype="bfloat16")
    with pytest.raises(PublicationError, match="wanted is"):
        receiver(tmp_path).receive(replace(publication, version=replace(publication.version, number=2)))
    os.truncate(publication.location, 1000)
    with pytest.raises(PublicationError, match="cut short"):
        receiver(tmp_path).receive(publication)
    exporter.clear()
    with pytest.raises(PublicationError, match="gone"):
        receiver(tmp_path).receive(publication)


def test_the_cap_is_honoured(exporter_of, tmp_path):
    publication = export(exporter_of(max_bytes_per_s=50_000.0), weights(), 0)
    received = receiver(tmp_path).receive(publication)
    assert received.transfer_s >= (publication.size_bytes - 5_000) / 50_000 - 0.11


def test_a_cap_too_low_for_the_deadline_is_an_error_and_leaves_nothing(exporter_of, tmp_path):
    publication = export(exporter_of(max_bytes_per_s=1000.0), weights(), 0)
    with pytest.raises(PublicationError, match="within"):
        receiver(tmp_path, timeout_s=0.2).receive(publication)
    assert left(tmp_path) == []


def test_closing_ends_what_is_being_received(exporter_of, tmp_path):
    publication = export(exporter_of(max_bytes_per_s=2000.0), weights(), 0)
    engine, errors = receiver(tmp_path), []

    def receive() -> None:
        try:
            engine.receive(publication)
        except PublicationError as error:
            errors.append(str(error))

    thread = threading.Thread(target=receive)
    thread.start()
    while not left(tmp_path):
        clock.block(0.001)
    engine.close()
    thread.join()
    assert errors == ["the receiver was closed"] and left(tmp_path) == []


def test_a_trainer_that_went_away_is_an_error(tmp_path):
    exporter = served(tmp_path / "there")
    publication = export(exporter, weights(), 0)
    exporter.clear()
    with pytest.raises(PublicationError, match="refused"):
        receiver(tmp_path).receive(publication)
    assert left(tmp_path) == []


@pytest.mark.sandbox
@pytest.mark.parametrize("form", ["whole", "delta"])
def test_without_room_nothing_half_written_stays_and_the_version_before_does(tmp_path, form):
    exporter, (old, new) = in_folder(tmp_path / "there", form=form), history(2)
    small = tmp_path / "here"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=28k", "tmpfs", str(small)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no right to mount")
    try:
        engine = receiver(tmp_path, spare_bytes=-(1 << 40))  # else it goes elsewhere
        held = engine.receive(export(exporter, old, 1)).path
        with pytest.raises(PublicationError, match="free space"):
            engine.receive(export(exporter, new, 2))
        assert left(tmp_path) == [held.name] and same(held, old)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)  # a failure may hold maps of it


# --- ends


def test_what_is_held_and_was_changed_is_not_handed_out_when_it_is_asked_for_again(exporter_of, tmp_path):
    exporter, engine = exporter_of(), receiver(tmp_path)
    publication = export(exporter, weights(), 0)
    held = engine.receive(publication).path
    held.write_bytes(held.read_bytes()[:-1] + b"?")
    assert same(engine.receive(publication).path, weights())


def test_what_is_held_and_was_cut_short_is_fetched_again(exporter_of, tmp_path):
    exporter, engine, (old, new) = exporter_of(), receiver(tmp_path), history(2)
    os.truncate(engine.receive(export(exporter, old, 0)).path, 700)
    assert same(engine.receive(export(exporter, new, 1)).path, new)


class SilentStorage(AbstractFileSystem):
    """It does not answer until it is `woken`."""

    protocol = "silent"
    woken: ClassVar = threading.Event()

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self.woken.wait()
        return io.BytesIO(b"?")


def test_storage_that_does_not_answer_holds_up_neither_the_next_call_nor_the_end(tmp_path):
    fsspec.register_implementation("silent", SilentStorage, clobber=True)
    publication = export(in_folder(tmp_path / "there"), weights(), 0)
    engine, errors = receiver(tmp_path, timeout_s=0.2, close_s=0.05), []

    def receive() -> None:
        try:
            engine.receive(replace(publication, location="silent://bucket/f"))
        except PublicationError as error:
            errors.append(str(error))

    thread = threading.Thread(target=receive)
    thread.start()
    while not left(tmp_path):
        clock.block(0.001)
    with pytest.raises(PublicationError, match=r"waited 0\.2 s for another"):
        engine.receive(publication)
    engine.close()
    assert left(tmp_path) == []
    SilentStorage.woken.set()
    thread.join()
    assert errors == ["the receiver was closed"] and left(tmp_path) == []


def test_a_count_in_a_header_that_no_file_could_hold_is_an_error(tmp_path):
    exporter, (old, new) = in_folder(tmp_path / "there"), history(2)
    export(exporter, old, 1)
    publication = export(exporter, new, 2)
    path = Path(publication.location)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["changed"] = "9" * 5000
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(PublicationError, match="corrupt header: changed"):
        receiver(tmp_path).receive(publication)


def test_the_names_of_its_files_say_whose_they_are(tmp_path):
    publication = export(in_folder(tmp_path / "there"), stepped(weights(), 1), 7)
    name = receiver(tmp_path).receive(publication).path.name
    assert name == file_name("e0.fetched", os.getpid(), 7)


def test_neither_end_imports_torch():
    code = "import sys, muster.transport.receive, muster.publish.transports; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
