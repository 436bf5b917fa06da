"""A merged layer shows what the chain showed: compared through the kernel's own overlay, on trees that chance made."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.mounts import mount, unmount_below
from muster.sandbox.namespace.storage.squash import OWN_LAYERS, CannotSquash, squash
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts an overlay on the host: root alone may")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that a process does to a tree; what the tree does not allow is left out."""

    kind: str
    path: str
    other: str = ""

    def apply(self, root: Path) -> None:
        with suppress(OSError, shutil.Error):
            CHANGES[self.kind](root / self.path, root / self.other)


def write(path: Path, other: Path, *, flags: int = os.O_TRUNC) -> None:
    # not blocking: there may be a pipe without a reader
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | flags, 0o644)
    os.write(file, f"content of {other.name}".encode())
    os.close(file)


def append(path: Path, other: Path) -> None:
    write(path, other, flags=os.O_APPEND)


def remove(path: Path, other: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace_by_directory(path: Path, other: Path) -> None:
    remove(path, other)
    path.mkdir()


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "write": write,
    "append": append,
    "mkdir": lambda path, other: path.mkdir(),
    "remove": remove,
    "replace": replace_by_directory,
    "rename": lambda path, other: path.rename(other),
    "symlink": lambda path, other: path.symlink_to(other.name),
    "link": lambda path, other: other.hardlink_to(path),
    "fifo": lambda path, other: os.mkfifo(path),
    "chmod": lambda path, other: path.chmod(0o2710),
    "chown": lambda path, other: os.chown(path, 7, 8, follow_symlinks=False),
    "xattr": lambda path, other: os.setxattr(path, "user.note", other.name.encode()),
}
PATHS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
LAYERS = st.lists(
    st.lists(st.builds(Change, kind=st.sampled_from(sorted(CHANGES)), path=PATHS, other=PATHS), max_size=12),
    min_size=3,
    max_size=6,
)


@contextmanager
def mounted(at: Path, layers: list[Path], upper: Path | None = None) -> Iterator[Path]:
    """`layers` base first, through an overlay as bubblewrap mounts it."""
    at.mkdir()
    lower = "lowerdir=" + ":".join(str(layer) for layer in reversed(layers))
    work = at.with_name(at.name + "-work")
    work.mkdir()
    writable = f",upperdir={upper},workdir={work}" if upper else ""
    mount("overlay", at, "overlay", lower + writable + ",userxattr")
    try:
        yield at
    finally:
        unmount_below(at)


def seen(root: Path) -> dict[str, object]:
    """All that `stat` and `read` tell of a tree, but numbers of inodes and links."""
    found: dict[str, object] = {}
    names: dict[tuple[int, int], str] = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        name = str(path.relative_to(root))
        content: object = None
        if stat.S_ISREG(about.st_mode):
            content = (path.read_bytes(), names.setdefault((about.st_dev, about.st_ino), name))
        elif stat.S_ISLNK(about.st_mode):
            content = path.readlink()
        extra = {key: os.getxattr(path, key) for key in os.listxattr(path, follow_symlinks=False)}
        found[name] = (about.st_mode, about.st_uid, about.st_gid, about.st_rdev, about.st_mtime_ns, content, extra)
    return found


def make_layers(scratch: Path, history: list[list[Change]]) -> list[Path]:
    layers: list[Path] = []
    for number, changes in enumerate(history):
        upper = scratch / f"layer{number}"
        upper.mkdir()
        if layers:
            with mounted(scratch / f"at{number}", layers, upper) as root:
                for change in changes:
                    change.apply(root)
        else:
            for change in changes:
                change.apply(upper)
        layers.append(upper)
    return layers


def steps(*texts: str) -> list[Change]:
    return [Change(kind=kind, path=path, other=other) for kind, path, other in (t.split() for t in texts)]


@needs_root
@pytest.mark.sandbox
@settings(max_examples=60, deadline=None)
@given(LAYERS, st.integers(0, 2))
@example([steps("mkdir a -", "write a/b x"), steps("replace a -"), steps("write a/c y")], 1)  # opaque above an image
@example([steps("mkdir a -", "write a/b x"), steps("remove a/b -"), steps("remove a -")], 1)
@example([steps("mkdir a -", "write a/b x"), steps("remove a -"), steps("mkdir a -", "write a/c x")], 1)
@example([[], steps("mkdir a -", "write a/b x"), steps("remove a/b -")], 1)  # no whiteout may be left to be seen
@example([[], steps("write a x", "link a b"), steps("chown a -")], 1)
def test_a_merged_layer_shows_what_the_chain_showed(history: list[list[Change]], images: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        layers = make_layers(Path(scratch), history)
        image, own = layers[:images], layers[images:]
        merged = Path(scratch) / "merged"
        merged.mkdir()
        squash(tuple(own), tuple(image), merged)
        (empty := Path(scratch) / "empty").mkdir()  # one lower layer alone makes no overlay
        with (
            mounted(Path(scratch) / "chain", layers) as chain,
            mounted(Path(scratch) / "one", [empty, *image, merged]) as one,
        ):
            assert seen(one) == seen(chain)


@needs_root
@pytest.mark.sandbox
def test_files_are_shared_with_the_old_layers_and_copied_with_their_links_between_file_systems(tmp_path: Path) -> None:
    old, target = tmp_path / "old", tmp_path / "target"
    target.mkdir()
    old.mkdir()
    (old / "one").write_text("text")
    (old / "two").hardlink_to(old / "one")
    squash((old,), (), target)
    assert (target / "one").samefile(old / "one")

    far = tmp_path / "far"
    far.mkdir()
    mount("tmpfs", far, "tmpfs", "size=1m")
    try:
        squash((old,), (), far)
        assert (far / "one").samefile(far / "two")
        assert (far / "one").lstat().st_nlink == 2
        assert (far / "one").lstat().st_mtime_ns == (old / "one").lstat().st_mtime_ns
    finally:
        unmount_below(far)


def test_a_tree_deeper_than_a_path_can_say_is_left_as_it_is(tmp_path: Path) -> None:
    layer, target = tmp_path / "layer", tmp_path / "target"
    layer.mkdir()
    target.mkdir()
    here = os.open(layer, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with pytest.raises(CannotSquash, match="too long"):
        squash((layer,), (), target)


@pytest.mark.sandbox
def test_a_long_chain_of_snapshots_stays_short_and_keeps_its_files(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        sandbox = await backend.fork(image, limits=Limits(), label="chain")
        snapshot = image
        for number in range(OWN_LAYERS + 4):
            await sandbox.run(f"echo {number} > /app/{number}; rm -rf /app/d /app/{number - 2}; mkdir /app/d", 5)
            snapshot = await sandbox.snapshot()
            assert len(snapshot.layers) <= len(image.layers) + OWN_LAYERS
        fork = await backend.fork(snapshot, limits=Limits(), label="fork")
        last = OWN_LAYERS + 3
        assert (await fork.run(f"ls -A /app /app/d; cat /app/{last}", 5)).output == (
            f"/app:\n{last - 1}\n{last}\nd\n\n/app/d:\n{last}\n"
        )

    on_backend(body)


@pytest.mark.sandbox
def test_a_snapshot_taken_before_its_chain_was_merged_still_forks(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="chain")
        await sandbox.run("echo early > /app/file", 5)
        early = await sandbox.snapshot()
        for _ in range(OWN_LAYERS + 1):
            await sandbox.run("echo later > /app/file", 5)
            await backend.discard(await sandbox.snapshot())
        await sandbox.close()
        fork = await backend.fork(early, limits=Limits(), label="fork")
        assert (await fork.run("cat /app/file", 5)).output == "early\n"

    on_backend(body)
