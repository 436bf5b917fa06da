from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest
from pydantic import TypeAdapter, ValidationError

from app.publications import history, same, weights
from muster.errors import ConfigError, PublicationError
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, TransportConfig
from muster.publish.transports import exporter_for, retire
from muster.transport.receive import Receiver
from muster.transport.tensors import digest

CONFIGS = [
    MemoryConfig(),
    DirectConfig(),
    DirectConfig(form="delta"),
    CheckpointConfig(),
    CheckpointConfig(form="delta", anchor_every=3),
    CheckpointConfig(location="memory://muster-transports/run", form="delta"),
]


def label(config: object) -> str:
    return "-".join(str(v) for v in vars(config).values() if isinstance(v, str)).replace("/", "_")


@pytest.fixture
def storage():
    yield
    files = fsspec.filesystem("memory")
    if files.exists("/muster-transports"):
        files.rm("/muster-transports", recursive=True)


def exported(exporter, arrays: dict, number: int):  # type: ignore[no-untyped-def]
    return exporter.export(arrays, number=number, digest=digest(arrays, "bfloat16"), dtype="bfloat16")


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_whatever_the_way_the_same_weights_arrive_after_each_step(config, tmp_path, storage):
    exporter = pickle.loads(pickle.dumps(exporter_for(config, run_label=tmp_path.name, directory=tmp_path)))
    receiver = Receiver(label="e0", directory=tmp_path)
    try:
        for number, arrays in enumerate(history(5)):
            publication = exported(exporter, arrays, number)
            assert publication.transport == config.kind
            assert same(receiver.receive(publication).path, arrays)
            assert same(receiver.receive(publication).path, arrays)
            retire(publication)
            retire(publication)
    finally:
        receiver.close()
        exporter.clear()


@pytest.mark.parametrize("config", CONFIGS[1:], ids=label)
def test_an_engine_that_restarts_after_the_delivery_still_gets_the_version(config, tmp_path, storage):
    exporter = exporter_for(config, run_label=tmp_path.name, directory=tmp_path)
    try:
        for number, arrays in enumerate(history(3)):
            publication = exported(exporter, arrays, number)
            retire(publication)
        receiver = Receiver(label="restarted", directory=tmp_path)
        assert same(receiver.receive(publication).path, arrays)
        receiver.close()
    finally:
        exporter.clear()


@pytest.mark.parametrize("config", CONFIGS, ids=label)
def test_the_run_clears_what_another_process_published_for_it(config, tmp_path):
    if getattr(config, "location", ""):
        config = config.model_copy(update={"location": f"file://{tmp_path}/stored"})  # a process of its own sees it
    ours = exporter_for(config, run_label=tmp_path.name, directory=tmp_path)
    code = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from app.publications import weights
exporter = pickle.loads(sys.stdin.buffer.read())
print(exporter.export(weights(), number=0, digest="d", dtype="bfloat16").location)
"""
    here = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, here], input=pickle.dumps(ours), capture_output=True, check=True)
    path = Path(urlsplit(done.stdout.decode().strip()).path)
    if config.kind == "direct":
        path = Path("/dev/shm") / path.name
    assert path.exists()
    ours.clear()
    assert not path.exists()


def test_the_cap_travels_with_the_publication(tmp_path):
    for config in (MemoryConfig(max_bytes_per_s=5e6), CheckpointConfig(max_bytes_per_s=5e6)):
        exporter = exporter_for(config, run_label=tmp_path.name, directory=tmp_path)
        assert exported(exporter, weights(), 0).max_bytes_per_s == 5e6
        exporter.clear()


def test_a_checkpoint_goes_into_the_run_directory_unless_told_otherwise(tmp_path):
    exporter = exporter_for(CheckpointConfig(), run_label="r", directory=tmp_path)
    assert Path(exported(exporter, weights(), 0).location).parent == tmp_path / "weights"


def test_storage_that_nobody_knows_is_refused_before_the_run_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"publish\.transport\.location.*quux"):
        exporter_for(CheckpointConfig(location="quux://x"), run_label="r", directory=tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_that_names_the_version(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    exporter = exporter_for(
        CheckpointConfig(location=str(tmp_path / "file" / "below")), run_label="r", directory=tmp_path
    )
    with pytest.raises(PublicationError, match="version 3"):
        exported(exporter, weights(), 3)


def test_an_address_that_is_taken_is_an_error_that_says_so(tmp_path):
    first = exporter_for(DirectConfig(), run_label="a", directory=tmp_path)
    taken = urlsplit(exported(first, weights(), 0).location).port
    second = exporter_for(DirectConfig(port=taken), run_label="b", directory=tmp_path)
    with pytest.raises(PublicationError, match="in use"):
        exported(second, weights(), 0)
    first.clear()
    again = exporter_for(DirectConfig(port=taken), run_label="c", directory=tmp_path)
    exported(again, weights(), 0)  # who has cleared serves no more
    again.clear()


@pytest.mark.parametrize(
    "wrong", [{"kind": "pigeon"}, {"kind": "memory", "form": "delta"}, {"kind": "direct", "anchor_every": 0}]
)
def test_what_a_transport_cannot_do_is_refused(wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(TransportConfig).validate_python(wrong)
