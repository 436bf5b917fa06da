from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.errors import ImageError
from muster.sandbox.namespace.build.archive import Unpacker, open_tar
from muster.sandbox.namespace.build.tree import is_opaque

Member = tuple[str, bytes, str]
"""name, type, content or link"""
FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
ROOT = os.geteuid() == 0


def make(
    path: Path, members: list[Member], mode: str = "w", edit: Callable[[tarfile.TarInfo], None] | None = None
) -> Path:
    with tarfile.open(path, mode) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755 if kind == DIRECTORY else 0o644
            if kind == FILE:
                info.size = len(content)
            else:
                info.linkname = content
            if edit:
                edit(info)
            tar.addfile(info, io.BytesIO(content.encode()) if kind == FILE else None)
    return path


def unpack(path: Path, root: Path, *, whiteouts: bool = False) -> None:
    root.mkdir()
    with open_tar(path, "the archive") as tar:
        Unpacker(root, whiteouts=whiteouts).unpack(tar)


@pytest.mark.parametrize(
    "members",
    [
        [("../../out", FILE, "x")],
        [("/out", FILE, "x")],
        [("a/../../out", FILE, "x")],
        [("link", LINK, "../.."), ("link/out", FILE, "x")],
        [("link", LINK, "/"), ("link/out", FILE, "x")],
        [("link", LINK, "../out"), ("link", FILE, "x")],
        [("a", DIRECTORY, ""), ("a", LINK, ".."), ("a/out", FILE, "x")],
        [("link", LINK, "../outside"), ("link/out", FILE, "x")],
        [("hard", HARD, "../outside/secret"), ("hard", FILE, "x")],
    ],
)
def test_nothing_is_written_outside(tmp_path: Path, members: list[Member]) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    path = make(tmp_path / "a.tar", members)
    with contextlib.suppress(ImageError):  # a link that leads nowhere in there
        unpack(path, tmp_path / "root")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "outside", "root"]
    assert [p.read_text() for p in (tmp_path / "outside").iterdir()] == ["secret"]
    assert not Path("/out").exists()


@pytest.mark.parametrize("way", ["..", "/"])
def test_no_mode_owner_or_time_outside_is_changed(tmp_path: Path, way: str) -> None:
    def edit(info: tarfile.TarInfo) -> None:
        info.mode, info.uid, info.mtime = 0o4777, 77, 1

    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    target = "../outside" if way == ".." else str(outside)
    members = [("a", DIRECTORY, ""), ("b", DIRECTORY, ""), ("a", LINK, target), ("b", LINK, "a"), ("c", LINK, target)]
    before = outside.stat()
    unpack(make(tmp_path / "a.tar", members, edit=edit), tmp_path / "root")
    after = outside.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime) == (before.st_mode, before.st_uid, before.st_mtime)


def test_files_links_and_modes_are_as_archived(tmp_path: Path) -> None:
    def edit(info: tarfile.TarInfo) -> None:
        info.mode = {"d": 0o1777, "d/tool": 0o4755, "closed": 0o500}.get(info.name, 0o640)
        info.uid, info.gid, info.mtime = 12, 34, 1000

    members = [
        ("d", DIRECTORY, ""),
        ("d/tool", FILE, "tool"),
        ("implied/deep/file", FILE, "x"),
        ("soft", LINK, "d/tool"),
        ("hard", HARD, "d/tool"),
        ("closed", DIRECTORY, ""),
        ("closed/file", FILE, "x"),
    ]
    unpack(make(tmp_path / "a.tar", members, edit=edit), tmp_path / "root")
    root = tmp_path / "root"
    assert (root / "soft").readlink() == Path("d/tool")
    assert (root / "hard").stat().st_ino == (root / "d" / "tool").stat().st_ino
    assert [stat.S_IMODE((root / p).stat().st_mode) for p in ("d", "d/tool", "closed")] == [0o1777, 0o4755, 0o500]
    assert (root / "d" / "tool").stat().st_mtime == 1000
    if ROOT:
        assert ((root / "soft").lstat().st_uid, (root / "d").stat().st_gid) == (12, 34)


def test_the_later_member_wins(tmp_path: Path) -> None:
    members = [("a", FILE, "1"), ("a", FILE, "2"), ("b/c", FILE, "x"), ("b", FILE, "now a file"), ("a/d", FILE, "x")]
    unpack(make(tmp_path / "a.tar", members), tmp_path / "root")
    assert (tmp_path / "root" / "b").read_text() == "now a file"
    assert (tmp_path / "root" / "a" / "d").read_text() == "x"


def test_devices_are_left_out_and_pipes_are_not(tmp_path: Path) -> None:
    unpack(make(tmp_path / "a.tar", [("null", tarfile.CHRTYPE, ""), ("p", tarfile.FIFOTYPE, "")]), tmp_path / "root")
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["p"]


def test_marks_of_removal_become_those_of_an_overlay_in_a_layer_alone(tmp_path: Path) -> None:
    members = [("d/.wh..wh..opq", FILE, ""), ("d/new", FILE, "x"), ("e/.wh.gone", FILE, "")]
    path = make(tmp_path / "a.tar", members)
    unpack(path, tmp_path / "layer", whiteouts=True)
    assert is_opaque(tmp_path / "layer" / "d")
    gone = (tmp_path / "layer" / "e" / "gone").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    unpack(path, tmp_path / "plain")
    assert (tmp_path / "plain" / "e" / ".wh.gone").is_file()


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_archives(tmp_path: Path, mode: str) -> None:
    unpack(make(tmp_path / "a", [("f", FILE, "x")], mode), tmp_path / "root")
    assert (tmp_path / "root" / "f").read_text() == "x"


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x28\xb5\x2f\xfdbroken"])
def test_what_is_no_archive_is_an_image_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ImageError, match="the archive: "):
        unpack(tmp_path / "a", tmp_path / "root")


def test_a_cut_archive_is_an_image_error(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tar", [("f", FILE, "x" * 5000)])
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ImageError, match="cannot be unpacked"):
        unpack(path, tmp_path / "root")
