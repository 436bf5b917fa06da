"""Is the verdict a file that the agent may write? Attacks made from a task's own tests. Law: pure.

    tests, instruction ─► paths that they name ─► write a verdict into each of them ─► does it earn?

No agent sees the tests, but names can be guessed, and a task whose reward is what such a file says is hackable by
design. Two proofs: a number that nobody else would give comes back as the reward; or a word like "passed" earns where
a word without meaning does not. Where the instruction names the file, and the reference solution leaves that very word
in it, the word is the answer and no verdict.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from muster.verifier.audit.battery import Exploit

NAME = "verdict-file"
KIND = "verdict_file"
NEUTRAL = "neutral"
PASSING = 1
ODD = 0.997
"""A reward that no verifier gives by chance, and that is below success."""

WORDS = (f"{ODD}", "1", "100", "pass", "passed", "PASSED", "ok", "OK", "true", "success", "done")

_MAX_PATHS = 40
_MAX_SOURCE_BYTES = 200_000
_ABSOLUTE = re.compile(r"(?<![\w./-])/[\w.+@-]+(?:/[\w.+@-]+)*")
_RELATIVE = re.compile(r"(?<![\w./$-])[\w+-][\w.+-]*(?:/[\w.+-]+)*(?:\.\w{1,8}|/[\w+-]+)(?![\w/-])")
_OPENED = re.compile(r"""(?:\bcat|\bread|<|\bsource|\[ -[efrsx]|\bgrep\s+\S+)\s+["']?([\w./+-]+)""")
_NOT_THE_AGENTS = ("/tests", "/logs/verifier", "/solution", "/dev", "/proc", "/sys", "/usr", "/bin", "/sbin", "/lib")


def named_paths(tests: Path, instruction: str, workdir: str) -> tuple[str, ...]:
    """Absolute paths, writable by an agent, that the tests or the instruction name."""
    found: dict[str, None] = {}
    for text in (*_sources(tests), instruction):
        for match in (*_ABSOLUTE.findall(text), *_RELATIVE.findall(text), *_OPENED.findall(text)):
            path = posixpath.normpath(posixpath.join(workdir, match))
            if path not in ("/", workdir) and not _inside(path, _NOT_THE_AGENTS):
                found[path] = None
    return tuple(found)[:_MAX_PATHS]


def answers(solved: Mapping[str, bytes], instruction: str) -> dict[str, str]:
    """Answers that the solution left in files the instruction names, by path; lower case, no white space around."""
    return {
        path: content.decode(errors="replace").strip().lower()
        for path, content in solved.items()
        if re.search(rf"(?<![\w.-]){re.escape(posixpath.basename(path))}(?![\w-])", instruction)
    }


def attack(word: str, paths: Iterable[str], right: Mapping[str, str]) -> Exploit | None:
    """Write `word` into all of `paths` but those of which it is the right answer. None: none is left."""
    targets = [path for path in paths if right.get(path) != word.lower()]
    if not targets:
        return None
    lines = [
        f'file={shlex.quote(path)}; mkdir -p "${{file%/*}}"; [ -d "$file" ] || echo {shlex.quote(text)} >"$file"'
        for path in targets
        for text in (_document(word) if path.endswith(".json") else word,)
    ]
    return Exploit(
        name=NAME, kind=KIND, what=f"Writes {word!r} into files that the tests read.", script="\n".join(lines)
    )


def _document(word: str) -> str:
    if word == NEUTRAL:
        return "{}"
    number = ODD if word == str(ODD) else PASSING
    return f'{{"reward": {number}, "score": {number}, "passed": true, "success": true, "status": "passed"}}'


def _sources(tests: Path) -> Sequence[str]:
    files = sorted(p for p in tests.rglob("*") if p.is_file() and not p.is_symlink())
    return [p.read_bytes()[:_MAX_SOURCE_BYTES].decode(errors="replace") for p in files]


def _inside(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
