"""A small root file system out of this machine's own programs: an image for benchmarks and tests without a network.

PROGRAMS ─ldd─► their libraries ─► usr/bin, usr/lib…, links as on a merged-/usr Debian, etc/passwd, tmp, app
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = (
    *("bash", "setsid", "setpriv", "runuser", "grep", "sed", "ps", "tar", "gzip", "find", "kill", "perl"),
    *("awk", "base64", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "dirname", "du", "env"),
    *("expr", "false", "head", "id", "install", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "mv", "nl"),
    *("nohup", "od", "printf", "pwd", "readlink", "realpath", "rm", "rmdir", "seq", "sha256sum", "sleep", "sort"),
    *("stat", "stdbuf", "stty", "sync", "tail", "tee", "test", "timeout", "touch", "tr", "true", "truncate", "tty"),
    *("uname", "uniq", "unlink", "wc", "whoami", "xargs", "yes"),
)
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "bash"}
DIRECTORIES = {
    **dict.fromkeys(("app", "dev", "etc", "home", "mnt", "opt", "proc", "run", "srv", "sys", "var/log"), 0o755),
    **dict.fromkeys(("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "var/lib", "var/cache"), 0o755),
    "root": 0o700,
    "tmp": 0o1777,
    "var/tmp": 0o1777,
}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def build(directory: Path) -> Path:
    """Write the root file system into `directory`, which is made. Returns it."""
    for name, mode in DIRECTORIES.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name).chmod(mode)
    for name, target in LINKS.items():
        (directory / name).symlink_to(target)
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    programs = [Path(path) for name in PROGRAMS if (path := shutil.which(name))]
    for program in programs:
        shutil.copy2(program, directory / "usr/bin" / program.name)
    for library in sorted(_libraries(programs)):
        target = _merged(directory, library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
    return directory


def build_tar(file: Path, scratch: Path) -> Path:
    """The same as a tar with owner root, for `docker import`. `scratch`: a directory to make it in."""
    root = build(scratch)
    with tarfile.open(file, "w") as tar:
        tar.add(root, arcname=".", filter=_owned_by_root)
    return file


def _libraries(programs: list[Path]) -> set[Path]:
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, flags=re.MULTILINE)}


def _merged(directory: Path, library: Path) -> Path:
    """Path of a library named /lib… on a merged /usr."""
    inner = library.relative_to("/")
    return directory / (inner if inner.parts[0] == "usr" else Path("usr", inner))


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
