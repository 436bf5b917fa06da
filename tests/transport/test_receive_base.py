"""Receiving what builds on the weights that an engine started from: adapters, and versions that lie here already."""

from __future__ import annotations

import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from app.publications import export, in_folder, in_memory, left, receiver, same, stepped, weights
from muster.errors import PublicationError
from muster.transport.adapter import Adapter, merge, narrow
from muster.transport.base import BaseWeights
from muster.transport.tensors import digest, encode_header
from muster.types import Version

# --- adapters


def model_folder(folder: Path, arrays: dict, **config) -> Path:  # type: ignore[no-untyped-def]
    folder.mkdir()
    names = sorted(arrays)
    for index, part in enumerate((names[:2], names[2:])):
        shard = {name: arrays[name] for name in part}
        content = encode_header(shard, {}) + b"".join(a.tobytes() for a in shard.values())
        (folder / f"model-{index}.safetensors").write_bytes(content)
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')
    return folder


def finite(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    floats = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in weights().items()}
    return {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in floats.items()}


def low_rank(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "a.weight.lora_A": rng.standard_normal((4, 64), dtype=np.float32),
        "a.weight.lora_B": rng.standard_normal((48, 4), dtype=np.float32),
    }


def test_an_adapter_is_merged_with_what_the_engine_started_from(exporter_of, tmp_path):
    base, exporter = finite(), exporter_of(form="whole")
    engine = receiver(tmp_path, base=model_folder(tmp_path / "model", base | {"lm_head.weight": base["one"]}))
    adapter = Adapter(base=digest(base, "bfloat16"), scale=0.1)
    for number in (1, 2):
        merged = merge(base, low_rank(number), scale=0.1, dtype="bfloat16")
        version = digest(merged, "bfloat16")
        publication = exporter.export(
            low_rank(number), number=number, digest=version, dtype="bfloat16", adapter=adapter
        )
        received = engine.receive(publication)
        assert publication.form == "adapter" and same(received.path, merged)
        assert left(tmp_path) == [received.path.name]


def test_an_adapter_of_another_base_or_of_none_is_an_error_that_says_so(tmp_path):
    exporter = in_folder(tmp_path / "there")
    merged = merge(finite(), low_rank(1), scale=0.1, dtype="bfloat16")
    adapter = Adapter(base=digest(finite(), "bfloat16"), scale=0.1)
    publication = exporter.export(
        low_rank(1), number=1, digest=digest(merged, "bfloat16"), dtype="bfloat16", adapter=adapter
    )
    other = model_folder(tmp_path / "other", finite(seed=1))
    with pytest.raises(PublicationError, match="other weights"):
        receiver(tmp_path, base=other).receive(publication)
    with pytest.raises(PublicationError, match="names none"):
        receiver(tmp_path).receive(publication)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a.weight.lora_A": np.ones((4, 48), np.float32)}, "does not fit"),
        ({"a.weight.lora_B": np.ones((48, 3), np.float32)}, "does not fit"),
        ({"a.weight.lora_A": np.ones((4, 64), np.uint32)}, "no two matrices"),
        ({"a.weight.lora_A": np.ones(256, np.float32)}, "no two matrices"),
        ({"b.weight.lora_A": np.ones((4, 48), np.float32)}, "no two matrices"),
        ({"c.lora_A": np.ones((4, 48), np.float32)}, "changes c,"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_an_error(tmp_path, change, message):
    adapter = Adapter(base="b", scale=0.1)
    publication = in_folder(tmp_path / "there").export(
        low_rank(1) | change, number=1, digest="d", dtype="bfloat16", adapter=adapter
    )
    engine = receiver(tmp_path, base=model_folder(tmp_path / "model", finite()))
    with pytest.raises(PublicationError, match=message):
        engine.receive(publication)
    assert left(tmp_path) == []


def test_a_base_in_another_precision_is_rounded_first(tmp_path):
    rng = np.random.default_rng(0)
    exact = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in weights().items()}
    from_memory = in_memory(tmp_path)
    bits = {name: narrow(array, "bfloat16") for name, array in exact.items()}
    merged = merge(bits, low_rank(1), scale=0.5, dtype="bfloat16")
    publication = from_memory.export(
        low_rank(1),
        number=1,
        digest=digest(merged, "bfloat16"),
        dtype="bfloat16",
        adapter=Adapter(base=digest(bits, "bfloat16"), scale=0.5),
    )
    received = receiver(tmp_path, base=model_folder(tmp_path / "model", exact)).receive(publication)
    assert same(received.path, merged)


# --- what an engine started from


@pytest.fixture(params=["bfloat16", "float32"])
def started(request, tmp_path):  # type: ignore[no-untyped-def]
    """A model folder of two shards with a head that is tied, in either precision; and what of it is served."""
    rng = np.random.default_rng(3)
    exact = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in weights().items()}
    served_bits = {name: narrow(array, "bfloat16") for name, array in exact.items()}
    stored = exact if request.param == "float32" else served_bits
    return model_folder(tmp_path / "model", stored | {"lm_head.weight": stored["one"]}), served_bits


@pytest.mark.parametrize("form", ["whole", "delta"])
def test_the_weights_that_an_engine_started_from_are_never_fetched(exporter_of, tmp_path, form, started):
    model, start = started
    exporter, engine = exporter_of(form=form), receiver(tmp_path, base=model)
    received = engine.receive(export(exporter, start, 0))
    assert same(received.path, start) and received.size_bytes == 0 and received.decode_s > 0
    publication = export(exporter, stepped(start, 1), 1)
    received = engine.receive(publication)
    assert same(received.path, stepped(start, 1)) and received.size_bytes == publication.size_bytes
    assert publication.form == form and left(tmp_path) == [received.path.name]


def test_one_that_restarts_fetches_deltas_alone_back_to_the_weights_it_starts_from(exporter_of, tmp_path, started):
    model, start = started
    exporter, arrays = exporter_of(anchor_every=100), start
    publications = [export(exporter, arrays, 0)]
    for number in range(1, 4):
        arrays = stepped(arrays, number)
        publications.append(export(exporter, arrays, number))
    received = receiver(tmp_path, base=model).receive(publications[-1])
    assert same(received.path, arrays) and received.size_bytes == sum(p.size_bytes for p in publications[1:])
    assert left(tmp_path) == [received.path.name]


def test_one_that_started_from_other_weights_fetches_the_anchor(exporter_of, tmp_path, started):
    _, start = started
    publications = [export(exporter := exporter_of(), start, 0), export(exporter, stepped(start, 1), 1)]
    received = receiver(tmp_path, base=model_folder(tmp_path / "other", finite(seed=9))).receive(publications[1])
    assert same(received.path, stepped(start, 1)) and received.size_bytes == sum(p.size_bytes for p in publications)


@pytest.mark.parametrize("trouble", ["gone", "no json", "cut short"])
def test_one_whose_first_weights_cannot_be_read_fetches_the_anchor(exporter_of, tmp_path, started, trouble):
    model, start = started
    if trouble == "gone":
        shutil.rmtree(model)
    elif trouble == "no json":
        (model / "config.json").write_text("{")
    else:
        os.truncate(model / "model-1.safetensors", 900)
    publication = export(exporter_of(), start, 0)
    received = receiver(tmp_path, base=model).receive(publication)
    assert same(received.path, start) and received.size_bytes == publication.size_bytes


def test_first_weights_that_were_changed_after_they_were_known_are_found_out(exporter_of, tmp_path, started):
    model, start = started
    exporter, engine = exporter_of(form="whole"), receiver(tmp_path, base=model)
    first, second = export(exporter, start, 0), export(exporter, stepped(start, 1), 1)
    assert engine.receive(first).size_bytes == 0 and engine.receive(second).size_bytes == second.size_bytes
    shard = model / "model-0.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2] + b"??")
    with pytest.raises(PublicationError, match="digest"):
        engine.receive(first)
    assert engine.receive(first).size_bytes == first.size_bytes


def test_the_positions_of_a_delta_do_not_depend_on_the_order_in_which_a_trainer_hands_weights_over(tmp_path, started):
    model, start = started
    exporter = in_folder(tmp_path / "there")
    export(exporter, start, 0)
    turned = dict(reversed(stepped(start, 1).items()))
    publication = export(exporter, turned, 1)
    assert publication.form == "delta" and same(receiver(tmp_path, base=model).receive(publication).path, turned)


def test_knowing_the_first_weights_takes_no_second_copy_of_them(tmp_path):
    exact = {name: np.zeros((1024, 1024), np.float32) for name in "abcdefgh"}
    model = model_folder(tmp_path / "model", exact)
    base = BaseWeights(model)
    tracemalloc.start()
    try:
        base.digest("bfloat16")
        base.written_to(tmp_path / "whole", version=Version(number=0, digest="d"), dtype="bfloat16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 1024 * 1024 * 2 + 2_000_000, "two tensors at most, of eight"


def test_a_receiver_that_was_closed_makes_no_file_any_more(tmp_path):
    from_memory, base = in_memory(tmp_path), finite()
    merged = merge(base, low_rank(1), scale=0.1, dtype="bfloat16")
    publication = from_memory.export(
        low_rank(1),
        number=1,
        digest=digest(merged, "bfloat16"),
        dtype="bfloat16",
        adapter=Adapter(base=digest(base, "bfloat16"), scale=0.1),
    )
    engine = receiver(tmp_path, base=model_folder(tmp_path / "model", base))
    engine.close()
    with pytest.raises(PublicationError, match="closed"):
        engine.receive(publication)
    assert left(tmp_path) == []


@pytest.mark.sandbox
def test_the_room_that_is_looked_for_is_that_of_what_an_adapter_becomes(tmp_path):
    base = finite()
    merged = merge(base, low_rank(1), scale=0.1, dtype="bfloat16")
    publication = in_folder(tmp_path / "there").export(
        low_rank(1),
        number=1,
        digest=digest(merged, "bfloat16"),
        dtype="bfloat16",
        adapter=Adapter(base=digest(base, "bfloat16"), scale=0.1),
    )
    small = tmp_path / "here"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("no right to mount")
    try:
        engine = receiver(tmp_path, base=model_folder(tmp_path / "model", base), spare_bytes=0)
        assert publication.size_bytes < 8192
        assert same(engine.receive(publication).path, merged)  # in the folder for temporary files
        engine.close()
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)  # a failure may hold maps of it
