from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from muster.errors import TaskError
from muster.sandbox.dockerfile.steps import Copy, Document, FileStep, MakeDirectory, Origin
from muster.sandbox.namespace.build.copying import CopyOrigin, FileLayer, context_place
from muster.sandbox.namespace.build.layers import Stack
from muster.sandbox.namespace.build.tree import LayerTree

ROOT = os.geteuid() == 0


class Ground:
    """A base layer, a build context, and what copying makes of them."""

    def __init__(self, tmp_path: Path) -> None:
        self.base = tmp_path / "rootfs-base"
        self.context = tmp_path / "context"
        self._layer = tmp_path / "layer"
        for directory in (self.base, self.context):
            directory.mkdir()
        self.file(self.base / "etc" / "passwd", "root:x:0:0::/:\napp:x:12:34::/:\n")
        self.file(self.base / "etc" / "group", "root:x:0:\nweb:x:56:\n")

    def file(self, path: Path, content: str = "x", mode: int = 0o644) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)

    def plan(self, *steps: FileStep, places: dict[Origin, CopyOrigin] | None = None) -> FileLayer:
        stack = Stack(key="base", layers=(self.base,))
        return FileLayer(
            steps, file="Dockerfile", places=places or {None: context_place(self.context, None)}, below=stack
        )

    def write(self, *steps: FileStep, places: dict[Origin, CopyOrigin] | None = None) -> list[str]:
        """Everything in the layer, `path` or `path=content`."""
        self._layer.mkdir()
        self.plan(*steps, places=places).write(self._layer)
        return sorted(
            f"{p.relative_to(self._layer)}{f'={p.read_text()}' if p.is_file() and not p.is_symlink() else ''}"
            for p in self._layer.rglob("*")
        )

    def status(self, path: str) -> os.stat_result:
        return (self._layer / path).lstat()


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def copy(*sources: str, to: str, **options: Any) -> Copy:
    return Copy(line=7, name="COPY", sources=sources, target=to, **options)


def test_a_file_goes_to_a_name_or_into_a_directory(ground: Ground) -> None:
    ground.file(ground.context / "f")
    (ground.base / "there").mkdir()
    steps = copy("f", to="/a"), copy("f", to="/b/"), copy("f", to="/there")
    assert ground.write(*steps) == ["a=x", "b", "b/f=x", "there", "there/f=x"]


def test_of_a_directory_the_content_is_copied(ground: Ground) -> None:
    ground.file(ground.context / "d" / "deep" / "f", mode=0o751)
    (ground.context / "d" / "link").symlink_to("/etc/shadow")
    (ground.context / "d" / "empty").mkdir()
    assert ground.write(copy("d", to="/a")) == ["a", "a/deep", "a/deep/f=x", "a/empty", "a/link"]
    assert stat.S_IMODE(ground.status("a/deep/f").st_mode) == 0o751


def test_wildcards_match_hidden_files_too(ground: Ground) -> None:
    for name in (".a", "b", "c.py"):
        ground.file(ground.context / name)
    assert ground.write(copy("*", to="/all/"), copy("?.py", to="/py/")) == [
        "all",
        "all/.a=x",
        "all/b=x",
        "all/c.py=x",
        "py",
        "py/c.py=x",
    ]


def test_links_of_the_image_lead_inside_of_it(ground: Ground) -> None:
    ground.file(ground.context / "f")
    (ground.base / "usr" / "bin").mkdir(parents=True)
    (ground.base / "bin").symlink_to("usr/bin")
    (ground.base / "out").symlink_to("/../../..")
    assert ground.write(copy("f", to="/bin/tool"), copy("f", to="/out/etc/x")) == [
        "etc",
        "etc/x=x",
        "usr",
        "usr/bin",
        "usr/bin/tool=x",
    ]


def test_a_target_whose_links_go_round_in_circles_is_an_error(ground: Ground) -> None:
    ground.file(ground.context / "f")
    (ground.base / "loop").symlink_to("loop")
    with pytest.raises(TaskError, match="Dockerfile:7: COPY: /loop: too many links"):
        ground.write(copy("f", to="/loop/"))


def test_directories_keep_what_they_are_below(ground: Ground) -> None:
    ground.file(ground.context / "f")
    (ground.base / "tmp").mkdir()
    (ground.base / "tmp").chmod(0o1777)
    if ROOT:
        os.chown(ground.base / "tmp", 5, 6)
    ground.write(copy("f", to="/tmp/new/"), MakeDirectory(path="/tmp/work"))
    assert stat.S_IMODE(ground.status("tmp").st_mode) == 0o1777
    assert stat.S_IMODE(ground.status("tmp/new").st_mode) == 0o755
    if ROOT:
        assert (ground.status("tmp").st_uid, ground.status("tmp").st_gid) == (5, 6)


@pytest.mark.skipif(not ROOT, reason="an ordinary user owns all files")
@pytest.mark.parametrize(
    ("owner", "ids"), [("app", (12, 34)), ("app:web", (12, 56)), ("7", (7, 7)), ("7:8", (7, 8)), ("", (0, 0))]
)
def test_owners_by_name_and_number(ground: Ground, owner: str, ids: tuple[int, int]) -> None:
    ground.file(ground.context / "d" / "f")
    os.chown(ground.context / "d" / "f", 99, 99)
    ground.write(copy("d", to="/new", owner=owner, mode=0o700))
    for path in ("new", "new/f"):
        assert (ground.status(path).st_uid, ground.status(path).st_gid) == ids
    assert stat.S_IMODE(ground.status("new/f").st_mode) == 0o700


def test_an_owner_that_the_image_does_not_know_is_an_error(ground: Ground) -> None:
    ground.file(ground.context / "f")
    with pytest.raises(TaskError, match=r"Dockerfile:7: COPY: --chown=who: 'who' is not in /etc/passwd"):
        ground.write(copy("f", to="/f", owner="who"))


def test_parents_and_exclusions(ground: Ground) -> None:
    for name in ("a/b/c.py", "a/b/c.o", "a/d.py"):
        ground.file(ground.context / name)
    assert ground.write(copy("a/*/c.py", "a/./d.py", to="/x/", parents=True)) == [
        "x",
        "x/a",
        "x/a/b",
        "x/a/b/c.py=x",
        "x/d.py=x",
    ]
    (ground._layer).rename(ground.context / "done")
    assert ground.write(copy("a", to="/y", exclude=("**/*.o",))) == ["y", "y/b", "y/b/c.py=x", "y/d.py=x"]


def test_documents_become_files(ground: Ground) -> None:
    documents = (Document(name="f", content="1\n"), Document(name="g", content="2\n"))
    assert ground.write(copy(to="/x/", documents=documents), copy(to="/y", documents=documents[:1])) == [
        "x",
        "x/f=1\n",
        "x/g=2\n",
        "y=1\n",
    ]


def test_add_unpacks_archives_where_links_lead(ground: Ground, tmp_path: Path) -> None:
    ground.file(tmp_path / "in" / "bin" / "tool")
    with tarfile.open(ground.context / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "in" / "bin", "bin")
    ground.file(ground.context / "plain.tar", "no archive")
    (ground.base / "usr" / "bin").mkdir(parents=True)
    (ground.base / "bin").symlink_to("usr/bin")
    steps = copy("a.tar.gz", to="/", extract=True), copy("plain.tar", to="/", extract=True)
    assert ground.write(*steps) == ["plain.tar=no archive", "usr", "usr/bin", "usr/bin/tool=x"]


def test_from_another_stage_owners_stay(ground: Ground, tmp_path: Path) -> None:
    ground.file(tmp_path / "stage" / "out" / "f", "built")
    if ROOT:
        os.chown(tmp_path / "stage" / "out" / "f", 7, 8)
    places: dict[Origin, CopyOrigin] = {0: CopyOrigin(name="stage 0", tree=LayerTree((tmp_path / "stage",)), key="k")}
    assert ground.write(copy("/out/f", to="/f", origin=0), places=places) == ["f=built"]
    if ROOT:
        assert (ground.status("f").st_uid, ground.status("f").st_gid) == (7, 8)


@pytest.mark.parametrize("source", ["../secret", "link", "/../secret", "missing", "x*", "ignored", "loop"])
def test_nothing_comes_from_outside_of_the_context(ground: Ground, tmp_path: Path, source: str) -> None:
    ground.file(tmp_path / "secret")
    ground.file(ground.context / "ignored")
    ground.file(ground.context / ".dockerignore", "ignored\n")
    (ground.context / "link").symlink_to(tmp_path / "secret")
    (ground.context / "loop").symlink_to("loop")
    with pytest.raises(TaskError, match="Dockerfile:7: COPY: "):
        ground.plan(copy(source, to="/app/"))


def test_a_dockerfile_may_have_its_own_ignore_file(ground: Ground) -> None:
    for name in ("a", "b"):
        ground.file(ground.context / name)
    ground.file(ground.context / ".dockerignore", "a\n")
    ground.file(ground.context / "Dockerfile.dockerignore", "b\nDockerfile*\n.dockerignore\n")
    places: dict[Origin, CopyOrigin] = {None: context_place(ground.context, ground.context / "Dockerfile")}
    assert ground.write(copy(".", to="/x"), places=places) == ["x", "x/a=x"]


def test_the_key_changes_with_what_is_copied_and_how(ground: Ground) -> None:
    ground.file(ground.context / "d" / "f", "1")
    keys = [ground.plan(copy("d", to="/a")).key("k")]
    assert ground.plan(copy("d", to="/a")).key("k") == keys[0]
    keys.append(ground.plan(copy("d", to="/a")).key("other"))
    keys.append(ground.plan(copy("d", to="/b")).key("k"))
    keys.append(ground.plan(copy("d", to="/a", mode=0o700)).key("k"))
    keys.append(ground.plan(copy("d", to="/a", owner="1")).key("k"))
    keys.append(ground.plan(copy("d", to="/a"), MakeDirectory(path="/b")).key("k"))
    ground.file(ground.context / "d" / "f", "2")
    keys.append(ground.plan(copy("d", to="/a")).key("k"))
    (ground.context / "d" / "f").chmod(0o755)
    keys.append(ground.plan(copy("d", to="/a")).key("k"))
    (ground.context / "d" / "f").rename(ground.context / "d" / "g")
    keys.append(ground.plan(copy("d", to="/a")).key("k"))
    (ground.context / "d" / "l").symlink_to("g")
    keys.append(ground.plan(copy("d", to="/a")).key("k"))
    assert len(set(keys)) == len(keys)


def test_times_do_not_change_the_key(ground: Ground) -> None:
    ground.file(ground.context / "f")
    key = ground.plan(copy("f", to="/a")).key("k")
    os.utime(ground.context / "f", (1, 1))
    assert ground.plan(copy("f", to="/a")).key("k") == key
