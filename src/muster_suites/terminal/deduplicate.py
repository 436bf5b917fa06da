"""Replace files of the same content by hard links, and list checksums: files alike in size or name only, exceptions."""

from __future__ import annotations

import hashlib

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by, tree


def _deduplicate(draw: Draw) -> Instance:
    level = draw.difficulty
    folders = [""] if level == 1 else [f"{name}/" for name in draw.words(draw.at(1, 2, 3, 4, 5))]
    texts = [f"{draw.pair()} {draw.hexadecimal(20)}\n" for _ in range(draw.at(2, 4, 6, 9, 12))]
    contents: dict[str, str] = {}
    for index, text in enumerate(texts):
        name = draw.pair()
        for _ in range(2 if index < 2 else draw.number(1, 3)):
            contents[f"{draw.choice(folders)}{name if level >= 3 else draw.pair()}.txt"] = text
            name = draw.pair()
        if level >= 4:  # same size, other content
            contents[f"{draw.choice(folders)}{draw.pair()}.txt"] = text[:-2] + ("0\n" if text[-2] != "0" else "1\n")
    if level >= 3:
        contents |= {f"{folders[0]}{draw.pair()}.txt": "" for _ in range(2)}
    if level == 5:
        contents |= {f"keep/{draw.pair()}.txt": text for text in texts[:3]}
    groups: dict[str, list[str]] = {}
    alone: list[list[str]] = []
    for path in sorted(contents):
        if contents[path] == "" or path.startswith("keep/"):
            alone.append([path])
        else:
            groups.setdefault(contents[path], []).append(path)
    wishes = [
        "Below /app/data some files have the same content. Replace them by hard links, so that files of the same "
        "content are one file, and files of different content are not. All paths and contents stay.",
        "Then write /app/checksums.txt: for each different content the line `<sha256> <path>`, with the path (relative "
        "to /app/data) that is first in byte order; sort the lines by path.",
    ]
    if level >= 3:
        wishes.append("Leave empty files as they are: they are neither linked nor listed.")
    if level == 5:
        wishes.append("The same holds for everything below /app/data/keep.")
    listed = sorted((paths[0], hashlib.sha256(text.encode()).hexdigest()) for text, paths in groups.items())
    return Instance(
        instruction="\n".join(wishes),
        files={f"files/data/{path}": text for path, text in contents.items()},
        tests=judged_by(
            tree("/app/data", contents),
            {"check": "same_file", "root": "/app/data", "groups": [*groups.values(), *alone]},
            {"check": "lines", "path": "/app/checksums.txt", "lines": [f"{digest} {path}" for path, digest in listed]},
        ),
        solution=in_python(_SOLVE_DEDUPLICATE),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


_SOLVE_DEDUPLICATE = """
import hashlib, os
first = {}
os.chdir("data")
for path in sorted(os.path.relpath(os.path.join(d, name)) for d, _, names in os.walk(".") for name in names):
    content = open(path, "rb").read()
    if not content or path.startswith("keep/"):
        continue
    digest = hashlib.sha256(content).hexdigest()
    if first.setdefault(digest, path) != path:
        os.remove(path)
        os.link(first[digest], path)
with open("../checksums.txt", "w") as file:
    file.writelines(f"{digest} {path}\\n" for digest, path in first.items())
"""


FAMILY = Family(
    name="deduplicate",
    suite="terminal",
    make=_deduplicate,
    levels=(
        "two contents in one directory",
        "four contents in two directories",
        "empty files to be left alone",
        "files of the same size that differ",
        "a directory to be left alone",
    ),
)
