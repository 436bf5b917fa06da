"""The host-derived base layer: what every sandbox finds under / before any image layer.

Law: an allow list. From the host come the links into /usr and a few files of /etc that programs need to run;
users, passwords, homes, sockets, keys and settings of the host do not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

DIRECTORIES = {
    "app": 0o755,
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "logs/agent": 0o755,
    "logs/artifacts": 0o755,
    "logs/verifier": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o755,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "tmp": 0o1777,
    "usr": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}
# Links into /usr on a current host; on an old one they are directories, which are mounted.
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
COPIED = (
    "alternatives",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "protocols",
    "python3",
    "python3.11",
    "rpc",
    "services",
    "terminfo",
)
WRITTEN = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
        "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\nstaff:x:50:\nwww-data:x:33:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
    "shells": "/bin/sh\n/bin/bash\n",
}


def digest(etc: Path = Path("/etc")) -> str:
    """Hex; changes with the recipe, the copied files, and the host's release. Image cache keys start from it."""
    recipe = (DIRECTORIES, WRITTEN, _links())
    state = hashlib.sha256(repr(recipe).encode())
    for name in COPIED:
        for path in _files(etc / name):
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            state.update(f"{path.relative_to(etc)}\0{len(content)}\0".encode() + content)
    return state.hexdigest()[:16]


def build(directory: Path, etc: Path = Path("/etc")) -> None:
    """Write the layer into `directory`, which must exist and be empty."""
    directory.chmod(0o755)
    for name, mode in DIRECTORIES.items():
        (directory / name).mkdir(parents=True)
        (directory / name).chmod(mode)
    for name, target in _links().items():
        (directory / name).symlink_to(target)
    for name in COPIED:
        source = etc / name
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, directory / "etc" / name, symlinks=True)
        elif source.is_symlink() or source.exists():
            shutil.copy2(source, directory / "etc" / name, follow_symlinks=False)
    for name, text in WRITTEN.items():
        (directory / "etc" / name).write_text(text)


def _links() -> dict[str, str]:
    return {name: os.readlink(f"/{name}") for name in LINKS if Path(f"/{name}").is_symlink()}  # noqa: PTH115


def _files(path: Path) -> list[Path]:
    if path.is_dir() and not path.is_symlink():
        return sorted(p for p in path.rglob("*") if p.is_symlink() or p.is_file())
    return [path] if path.is_symlink() or path.exists() else []
