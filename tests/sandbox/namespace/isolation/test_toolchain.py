"""A verifier works with the tools of the image, whatever an agent made of the system directories."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.isolation.toolchain import build_top, stacks
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend
from sandbox.namespace.build.conftest import tiny_rootfs as tiny_rootfs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes whiteouts of files that root owns")


def whiteout(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def program(path: Path, text: str = "#!/usr/bin/bash\necho evil\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def linked_usr(layer: Path) -> None:
    program(layer / "evil" / "bin" / "cat")
    (layer / "usr").symlink_to("evil")


def opaque_usr(layer: Path) -> None:
    program(layer / "usr" / "bin" / "cat")
    os.setxattr(layer / "usr", "user.overlay.opaque", b"y")


def usr_as_a_file(layer: Path) -> None:
    (layer / "usr").write_text("")


def own_bin(layer: Path) -> None:
    program(layer / "bin" / "cat")
    (layer / "lib").symlink_to("/tmp")
    (layer / "lib64").symlink_to("/tmp")
    (layer / "sbin").mkdir()
    program(layer / "sbin" / "cat")


def preloaded(layer: Path) -> None:
    (layer / "etc").mkdir()
    (layer / "etc" / "ld.so.preload").write_text("/tmp/evil.so\n")
    (layer / "etc" / "ld.so.cache").write_text("")
    (layer / "etc" / "alternatives").mkdir()
    (layer / "etc" / "alternatives" / "evil").symlink_to("/tmp/evil")


def linked_etc(layer: Path) -> None:
    (layer / "etc").symlink_to("/tmp")


CHANGES: dict[str, Callable[[Path], None]] = {
    "a changed program": lambda layer: program(layer / "usr" / "bin" / "cat"),
    "a removed program": lambda layer: whiteout(layer / "usr" / "bin" / "cat"),
    "no /usr": lambda layer: whiteout(layer / "usr"),
    "a link for /usr": linked_usr,
    "a new /usr": opaque_usr,
    "a file for /usr": usr_as_a_file,
    "no /bin": lambda layer: whiteout(layer / "bin"),
    "directories for links, links for directories": own_bin,
    "a preloaded library": preloaded,
    "a link for /etc": linked_etc,
}


@needs_root
@pytest.mark.sandbox
@pytest.mark.parametrize("change", CHANGES)
def test_it_holds_whatever_the_agent_did(on_backend: OnBackend, tmp_path: Path, tiny_rootfs: Path, change: str) -> None:
    image = tmp_path / "rootfs-tiny"
    shutil.copytree(tiny_rootfs, image, symlinks=True)
    (image / "sbin").symlink_to("usr/sbin")
    (image / "task").mkdir()
    layer = tmp_path / "agent"
    (layer / "task").mkdir(parents=True)
    (layer / "task" / "answer").write_text("mine\n")
    CHANGES[change](layer)

    async def body(backend: NamespaceBackend) -> None:
        start = Snapshot(id="tiny", layers=(image,))
        final = Snapshot(id="final", layers=(image, layer), workdir="/task")
        for _ in range(2):  # the top layer is made once, and used again
            verifier = await backend.fork(final, limits=Limits(), label="verifier", toolchain=start)
            result = await verifier.run(
                "cat answer; type -P cat; /bin/cat answer; ls /etc/ld.so.preload /etc/alternatives /sbin/", timeout_s=5
            )
            listed = [line for line in result.output.splitlines() if not line.startswith("ls: cannot access")]
            assert listed == ["mine", "/usr/bin/cat", "mine", "/etc/alternatives:"]
            assert (await verifier.run("echo x > /usr/bin/new", timeout_s=5)).exit_code == 1
            assert (await verifier.run("echo x > /new && cat /new", timeout_s=5)).output == "x\n"

    on_backend(body)


@needs_root
@pytest.mark.sandbox
def test_it_holds_on_an_image_with_the_tools_of_this_host(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        start = await backend.prepare(ImageSpec(workdir="/app"))
        agent = await backend.fork(start, limits=Limits(), label="agent")
        await agent.run(
            "echo mine > answer; echo /tmp/evil.so > /etc/ld.so.preload; ln -s /tmp/evil /etc/alternatives/evil; "
            "cp -a /bin/. /tmp/; rm /bin; mkdir /bin; cp /tmp/bash /bin; "
            "printf '#!/bin/bash\\necho evil\\n' > /bin/cat; chmod 755 /bin/cat",
            timeout_s=20,
        )
        final = await agent.snapshot()
        verifier = await backend.fork(final, limits=Limits(), label="verifier", toolchain=start)
        checks = (
            "/bin/cat answer; cat answer; test -e /etc/ld.so.preload; echo $?; test -L /etc/alternatives/evil; echo $?"
        )
        assert (await verifier.run(checks, timeout_s=5)).output == "mine\nmine\n1\n1\n"

    on_backend(body)


@needs_root
def test_a_top_layer_has_links_mount_points_and_whiteouts_as_the_image(tmp_path: Path) -> None:
    lower, upper, top = tmp_path / "rootfs-a", tmp_path / "b", tmp_path / "top"
    for directory in (lower / "usr/bin", lower / "lib64", lower / "etc/alternatives", upper / "etc/alternatives", top):
        directory.mkdir(parents=True)
    (lower / "bin").symlink_to("usr/bin")
    (lower / "etc/ld.so.cache").write_text("cache")
    (lower / "etc/alternatives/pager").symlink_to("/usr/bin/less")
    (lower / "etc/alternatives/editor").symlink_to("/usr/bin/vi")
    whiteout(upper / "etc/alternatives/pager")
    (upper / "lib64").symlink_to("usr/lib64")
    build_top((lower, upper), top)
    kinds = {
        str(path.relative_to(top)): "directory"
        if path.is_dir() and not path.is_symlink()
        else str(path.readlink())
        if path.is_symlink()
        else "whiteout"
        if stat.S_ISCHR(path.lstat().st_mode)
        else "file"
        for path in top.rglob("*")
    }
    assert kinds == {
        "usr": "directory",
        "bin": "usr/bin",
        "lib64": "usr/lib64",
        **dict.fromkeys(("sbin", "lib", "lib32", "libx32", "etc/ld.so.preload"), "whiteout"),
        "etc": "directory",
        "etc/ld.so.cache": "file",
        "etc/alternatives": "directory",
        "etc/alternatives/editor": "/usr/bin/vi",
    }
    assert os.getxattr(top / "etc/alternatives", "user.overlay.opaque") == b"y"
    assert [(stack.target, stack.sources) for stack in stacks((lower, upper))] == [("/usr", (lower / "usr",))]


def test_only_what_is_visible_of_a_directory_is_stacked(tmp_path: Path) -> None:
    layers = tuple(tmp_path / name for name in ("rootfs-a", "b", "c", "d"))
    for layer in layers[:3]:
        (layer / "usr").mkdir(parents=True)
    layers[3].mkdir()
    os.setxattr(layers[1] / "usr", "user.overlay.opaque", b"y")
    assert [stack.sources for stack in stacks(layers)] == [(layers[1] / "usr", layers[2] / "usr")]
