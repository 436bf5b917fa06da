from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from muster.sandbox.dockerfile.ignore import Ignore
from muster.sandbox.namespace.build.tree import OPAQUE, LayerTree


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, ...]:
    """Three layers with a removed file, an opaque directory, a replaced directory and links."""
    low, middle, top = (tmp_path / name for name in ("low", "middle", "top"))
    for path in ("d/kept", "d/removed", "opaque/below", "replaced/below", "etc/passwd"):
        (low / path).parent.mkdir(parents=True, exist_ok=True)
        (low / path).write_text("low")
    (middle / "d").mkdir(parents=True)
    (middle / "d" / "added").write_text("middle")
    os.mknod(middle / "d" / "removed", stat.S_IFCHR, os.makedev(0, 0))
    (middle / "opaque").mkdir()
    os.setxattr(middle / "opaque", OPAQUE, b"y")
    (middle / "opaque" / "above").write_text("middle")
    (middle / "replaced").write_text("a file now")
    top.mkdir()
    (top / "absolute").symlink_to("/d")
    (top / "relative").symlink_to("../../absolute/kept")
    (top / "loop").symlink_to("loop")
    (top / "out").symlink_to("/../../../../etc")
    return low, middle, top


def listing(tree: LayerTree, path: str) -> list[str]:
    entry = tree.entry(path)
    assert entry is not None
    return [name for name, _ in tree.children(entry)]


def test_layers_merge_as_an_overlay_does(layers: tuple[Path, ...]) -> None:
    tree = LayerTree(layers)
    assert listing(tree, "/d") == ["added", "kept"]
    assert listing(tree, "/opaque") == ["above"]
    assert tree.entry("/d/removed") is None
    replaced = tree.entry("/replaced")
    assert replaced is not None
    assert replaced.path.read_text() == "a file now"
    assert tree.entry("/replaced/below") is None


def test_links_lead_where_a_process_inside_would_go(layers: tuple[Path, ...]) -> None:
    tree = LayerTree(layers)
    assert tree.resolve("/relative") == PurePosixPath("/d/kept")
    assert tree.resolve("/relative", follow_last=False) == PurePosixPath("/relative")
    assert tree.resolve("/absolute/new/file") == PurePosixPath("/d/new/file")
    found = tree.entry("/out/passwd")
    assert found is not None
    assert found.path == layers[0] / "etc" / "passwd"  # not the host's
    with pytest.raises(OSError, match="too many links"):
        tree.resolve("/loop")


def test_walking_and_matching(layers: tuple[Path, ...]) -> None:
    tree = LayerTree(layers)
    root = tree.entry("/")
    assert root is not None
    names = {str(name) for name, _ in tree.walk(PurePosixPath("/"), root)}
    assert {"d", "d/added", "d/kept", "opaque/above", "absolute"} <= names
    assert not {"d/removed", "opaque/below", "absolute/kept"} & names
    assert [str(p) for p in tree.glob("d/*e*")] == ["/d/added", "/d/kept"]
    assert [str(p) for p in tree.glob("/absolute/[^a]*")] == ["/d/kept"]
    assert tree.glob("nothing") == []
    assert [str(p) for p in tree.glob("../../etc/passwd")] == ["/etc/passwd"]


def test_what_is_ignored_is_not_found_but_what_comes_back_is(tmp_path: Path) -> None:
    for path in ("a/x", "a/y", "b/x"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    tree = LayerTree((tmp_path,), ignore=Ignore("a\nb\n!a/y"))
    root = tree.entry("/")
    assert root is not None
    assert [str(name) for name, _ in tree.walk(PurePosixPath("/"), root)] == ["a/y"]
    assert [str(p) for p in tree.glob("*")] == ["/a"]  # it holds something that is shown
    assert tree.glob("b") == []


def test_over_the_hosts_usr_its_files_are_the_lowest(tmp_path: Path) -> None:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "mine").write_text("")
    tree = LayerTree((tmp_path,), host_usr=True)
    names = listing(tree, "/usr/bin")
    assert "mine" in names
    assert "env" in names
    assert tree.entry("/etc") is None
