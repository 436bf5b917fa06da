"""Restore what a damaged backup still holds: checksums, archives inside archives, one cut off, stale copies."""

from __future__ import annotations

import hashlib
from typing import Any

from muster_suites.archives import gzip_file, tar_file, zip_file
from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by, tree


def _archive_rescue(draw: Draw) -> Instance:
    level = draw.difficulty
    wanted = {
        f"{draw.word()}/{draw.word()}.txt": f"{draw.pair()} {draw.hexadecimal(40)}\n" for _ in range(3 + 2 * level)
    }
    paths = sorted(wanted)
    good = [(path, wanted[path].encode()) for path in paths]
    damaged: list[str] = []
    if level >= 2:
        damaged = sorted(draw.sample(paths[: len(paths) // 2], draw.at(0, 1, 1, 2, 2)))
    members = [(path, data[::-1] if path in damaged else data) for path, data in good]
    half = len(members) // 2
    if level <= 2:
        name, archive = "bundle.tar", tar_file(members)
    elif level == 3:
        parts = [("first.zip", zip_file(members[:half])), ("second.tar.gz", gzip_file(tar_file(members[half:])))]
        name, archive = "bundle.tar", tar_file(parts)
    else:
        whole = gzip_file(tar_file(members[half:]))
        cut = whole[: 15 + 2 * 1024 + 532]  # two members of 1024 bytes are left, and 20 bytes of the third's content
        damaged = sorted({*damaged, *(path for path, _ in members[half + 2 :])})
        parts = [("first.zip", zip_file(members[:half])), ("second.tar.gz", cut)]
        if level == 5:
            saved = damaged.pop(draw.number(0, len(damaged) - 1))
            stale = [(path, b"stale\n") for path in (members[0][0], members[half][0])]
            parts.append(("third.tar", tar_file([*stale, (saved, wanted[saved].encode())])))
        name, archive = "bundle.tar.gz", gzip_file(tar_file(parts))
    manifest = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in good)
    restored: dict[str, Any] = {
        path: {"type": "file", "sha256": hashlib.sha256(data).hexdigest()} for path, data in good if path not in damaged
    }
    checks = [tree("/app/restored", restored)]
    if level >= 2:
        checks.append({"check": "lines", "path": "/app/damaged.txt", "lines": damaged, "ordered": False})
    return Instance(
        instruction=_instruction(level, name),
        files={f"files/{name}": archive, "files/MANIFEST": manifest},
        tests=judged_by(*checks),
        solution="mkdir restored\ntar -xf bundle.tar -C restored" if level == 1 else in_python(_SOLVE_ARCHIVE),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int, name: str) -> str:
    rules = [f"/app/{name} is a backup. Restore its files below /app/restored, at their paths."]
    if level >= 2:
        rules[0] = (
            f"/app/{name} is a backup, and /app/MANIFEST lists SHA-256 and path of each file that it should hold."
        )
        rules.append(
            "Restore below /app/restored, at their paths, exactly those files that the backup still holds intact, and "
            "write the paths of all others to /app/damaged.txt, one in each line."
        )
    if level >= 3:
        rules.append("The backup holds archives of other kinds inside; their files are meant, not the archives.")
    if level >= 4:
        rules.append("One of them was cut off; what stands before the cut can be saved.")
    if level == 5:
        rules.append("A path may occur in more than one archive: any copy that fits the manifest will do.")
    return "\n".join(rules)


_SOLVE_ARCHIVE = """
import glob, hashlib, io, os, tarfile, zipfile, zlib

def members(data):
    if data[:2] == b"\\x1f\\x8b":
        data = zlib.decompressobj(31).decompress(data)  # as far as it goes
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return [(name, archive.read(name)) for name in archive.namelist()]
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                found.append((member.name, archive.extractfile(member).read()))
    except tarfile.ReadError:
        pass
    return found

def files(data):
    for name, content in members(data):
        if name.endswith((".zip", ".tar", ".tar.gz")):
            yield from files(content)
        else:
            yield name, content

wanted = dict(reversed(line.split()) for line in open("MANIFEST"))
found = {}
for path, content in files(open(glob.glob("bundle.tar*")[0], "rb").read()):
    if wanted.get(path) == hashlib.sha256(content).hexdigest():
        found[path] = content
for path, content in found.items():
    target = os.path.join("restored", path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content)
with open("damaged.txt", "w") as file:
    file.writelines(f"{path}\\n" for path in sorted(set(wanted) - set(found)))
"""


FAMILY = Family(
    name="archive-rescue",
    suite="terminal",
    make=_archive_rescue,
    levels=(
        "one archive, nothing damaged",
        "one damaged file to find by checksum",
        "archives of two kinds inside an archive",
        "one of them cut off",
        "stale and spare copies in a third one",
    ),
)
