from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ConfigError, ImageError
from muster.sandbox.dockerfile.startup import ARCHITECTURE, Startup
from muster.sandbox.namespace.build.layers import LayerStore
from muster.sandbox.namespace.build.rootfs import RootFs, RootFsStore
from muster.sandbox.namespace.build.tree import LayerTree
from muster.sandbox.namespace.storage.state import RunDirectory
from muster.types import HealthCheck

Load = Callable[..., RootFs]


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "state" / "images", RunDirectory(tmp_path / "state", "test"))


@pytest.fixture
def load(store: LayerStore) -> Load:
    def load(source: Path) -> RootFs:
        found = RootFsStore({"img:*": str(source)}, store).load("img:1")
        assert found is not None
        return found

    return load


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def layer(files: dict[str, str], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, content in files.items():
            add(tar, name, content.encode())
    return buffer.getvalue()


LAYERS = [
    layer({"etc/a": "1", "etc/gone": "1", "d/below": "1"}),
    layer({"etc/.wh.gone": "", "d/.wh..wh..opq": "", "d/above": "2"}, "w:gz"),
]
CONFIG = {
    "Env": ["PATH=/x", "A=b=c"],
    "WorkingDir": "/w",
    "User": "app",
    "Entrypoint": ["e"],
    "Cmd": ["c", "d"],
    "Healthcheck": {"Test": ["CMD-SHELL", "probe it"], "Interval": 2_000_000_000, "Retries": 7},
}
STARTUP = Startup(
    env={"PATH": "/x", "A": "b=c"},
    workdir="/w",
    user="app",
    entrypoint=("e",),
    command=("c", "d"),
    health=HealthCheck(command="probe it", interval_s=2.0, retries=7),
)


def docker_save(path: Path, config: dict[str, Any] = CONFIG, images: int = 1) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, content in enumerate(LAYERS):
            add(tar, f"{number}/layer.tar", content)
        add(tar, "config.json", json.dumps({"config": config}).encode())
        image = {"Config": "config.json", "RepoTags": ["img:1"], "Layers": ["0/layer.tar", "1/layer.tar"]}
        add(tar, "manifest.json", json.dumps([image] * images).encode())
    return path


def oci_archive(path: Path, machines: tuple[str, ...] = (ARCHITECTURE, "other")) -> Path:
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    manifest = {
        "config": blob(json.dumps({"config": CONFIG}).encode()),
        "layers": [blob(content) for content in LAYERS],
    }
    image = blob(json.dumps(manifest).encode())
    attestation = {**blob(b"{}"), "platform": {"os": "unknown", "architecture": "unknown"}}
    images = [{**image, "platform": {"os": "linux", "architecture": machine}} for machine in machines]
    index = blob(json.dumps({"manifests": [*images, attestation]}).encode())
    with tarfile.open(path, "w") as tar:
        add(tar, "oci-layout", b"{}")
        add(tar, "index.json", json.dumps({"manifests": [index]}).encode())
        for digest, content in blobs.items():
            add(tar, f"blobs/sha256/{digest}", content)
    return path


def seen(rootfs: RootFs, path: str) -> str | None:
    entry = LayerTree(rootfs.stack.layers).entry(path)
    return entry.path.read_text() if entry and not entry.is_directory else None


def test_names_without_a_pattern_and_host_are_this_machine(store: LayerStore, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    images = RootFsStore({"mine": "host", "min*": str(tmp_path / "root")}, store)
    assert images.load("other") is None
    assert images.load("mine") is None  # the first pattern that matches
    assert images.load("mint") is not None


def test_a_source_that_is_not_there_is_a_configuration_error(store: LayerStore) -> None:
    with pytest.raises(ConfigError, match=r"sandbox.images: 'a\*' = '/nowhere/x.tar': there is no such"):
        RootFsStore({"a*": "/nowhere/x.tar"}, store)


def test_a_directory_is_copied_and_told_by_its_metadata(load: Load, tmp_path: Path) -> None:
    source = tmp_path / "root"
    (source / "etc").mkdir(parents=True)
    (source / "etc" / "a").write_text("1")
    (source / "link").symlink_to("etc/a")
    first = load(source)
    assert first.stack.layers[0].name.startswith("rootfs-")
    assert not first.stack.host_usr
    shutil.copytree(source, tmp_path / "same", symlinks=True)
    assert load(tmp_path / "same").stack == first.stack
    (source / "etc" / "a").write_text("22")
    assert seen(first, "/link") == "1"  # a layer never changes
    assert seen(load(source), "/link") == "22"


def test_a_plain_tar_is_one_layer_with_what_every_sandbox_needs(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(layer({"./etc/a": "1", "./etc/hosts": "theirs", "./tmp/x": ""}))
    rootfs = load(path)
    assert len(rootfs.stack.layers) == 2
    assert seen(rootfs, "/etc/a") == "1"
    assert "localhost" in (seen(rootfs, "/etc/hosts") or "")
    assert seen(rootfs, "/etc/passwd") is None  # its own business
    tree = LayerTree(rootfs.stack.layers)
    assert all(tree.entry(f"/{name}") for name in ("proc", "dev", "run", "tmp", "logs/verifier", "tmp/x"))


@pytest.mark.parametrize("archive", [docker_save, oci_archive])
def test_an_image_archive_gives_its_layers_and_settings(
    load: Load, tmp_path: Path, archive: Callable[[Path], Path]
) -> None:
    rootfs = load(archive(tmp_path / "image.tar"))
    assert rootfs.startup == STARTUP
    assert len(rootfs.stack.layers) == 3
    assert [seen(rootfs, p) for p in ("/etc/a", "/etc/gone", "/d/below", "/d/above")] == ["1", None, None, "2"]


def test_both_kinds_of_archive_share_layers(load: Load, tmp_path: Path) -> None:
    assert load(docker_save(tmp_path / "a.tar")).stack == load(oci_archive(tmp_path / "b.tar")).stack


def test_an_archive_is_read_again_only_when_it_changed(load: Load, tmp_path: Path) -> None:
    path = docker_save(tmp_path / "image.tar")
    load(path)
    (note,) = (tmp_path / "state" / "images" / "sources").iterdir()
    note.write_text(note.read_text().replace('"user": "app"', '"user": "remembered"'))
    assert load(path).startup.user == "remembered"
    docker_save(path)
    assert load(path).startup.user == "app"


def test_layers_that_were_removed_are_unpacked_again(load: Load, tmp_path: Path) -> None:
    path = docker_save(tmp_path / "image.tar")
    first = load(path)
    shutil.rmtree(first.stack.layers[1])
    assert load(path) == first
    assert seen(first, "/d/above") == "2"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: docker_save(p, images=2), r"holds 2 images \(img:1, img:1\): save one"),
        (lambda p: docker_save(p, {"OnBuild": ["RUN x"]}), "has ONBUILD"),
        (lambda p: oci_archive(p, ("other",)), "needs one image for linux/"),
        (lambda p: p.write_bytes(layer({"manifest.json": "[{}]"})), "its manifest is not understood"),
        (lambda p: p.write_bytes(layer({"manifest.json": "no json"})), "its manifest is not understood"),
        (
            lambda p: p.write_bytes(layer({"manifest.json": '[{"Config": "c", "Layers": ["l"]}]'})),
            "names c, and does not hold it",
        ),
        (lambda p: p.write_text("no tar"), "cannot be unpacked"),
    ],
)
def test_an_archive_that_is_of_no_use_says_why(
    load: Load, tmp_path: Path, make: Callable[[Path], Any], says: str
) -> None:
    make(tmp_path / "image.tar")
    with pytest.raises(ImageError, match=says) as caught:
        load(tmp_path / "image.tar")
    assert "sandbox.images: 'img:*' = " in str(caught.value)


def test_a_broken_archive_leaves_no_layer(load: Load, store: LayerStore, tmp_path: Path) -> None:
    path = docker_save(tmp_path / "image.tar")
    content = path.read_bytes().replace(LAYERS[1], b"\0" * len(LAYERS[1]))
    path.write_bytes(content)
    with pytest.raises(ImageError):
        load(path)
    assert len([p for p in store.root.iterdir() if p.name != "sources"]) == 1  # the first, whole


def test_scratch_has_mount_points_alone(store: LayerStore) -> None:
    rootfs = RootFsStore({}, store).scratch()
    assert not rootfs.stack.host_usr
    assert seen(rootfs, "/etc/passwd") is not None
    assert os.listdir(rootfs.stack.layers[0] / "usr") == []  # noqa: PTH208
