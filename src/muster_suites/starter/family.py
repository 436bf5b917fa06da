"""A family of starter tasks: one function from drawn words to a tree before and after.

Law: a change states the whole tree of /app before and after. The files of the image, the test script and the proof
that doing nothing fails all follow from these two trees; no family writes a test of its own.

    Words ─► make ─► TreeChange(before, after, solution) ─► Instance: before in the image, after in tests/test.sh
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from muster_suites.frame import Family, File, Instance
from muster_suites.words import Words

Tree = Mapping[str, str | None]
"""Path relative to /app -> content of the file; None stands for a directory. Parents are listed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChange:
    """One instance, as a family tells it. Every file of `executable` must end with its execute bit set.

    Example: `TreeChange(instruction="Delete the file a.txt.", before={"a.txt": "x\\n", "b.txt": "y\\n"},
    after={"b.txt": "y\\n"}, solution="rm a.txt")`
    """

    instruction: str
    before: Tree
    after: Tree
    solution: str
    executable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.before, "an image copies at least one file"
        assert self.executable or self.before != self.after, "doing nothing must fail"


def starter_family(name: str, make: Callable[[Words], TreeChange], *, max_turns: int = 1) -> Family:
    """`max_turns` is the number of commands that the agent may run."""
    return Family(name=name, suite="starter", make=lambda words: _instance(make(words), max_turns))


def _instance(change: TreeChange, max_turns: int) -> Instance:
    return Instance(
        instruction=change.instruction,
        files={f"files/{path}": content for path, content in change.before.items()},
        tests={"test.sh": File(content=verifier_script(change), mode=0o755)},
        solution=f"#!/bin/sh\ncd /app\n{change.solution}",
        max_turns=max_turns,
        dockerfile=_DOCKERFILE,
        agent_timeout_s=60,
        verifier_timeout_s=30,
        memory_mb=256,
        storage_mb=64,
    )


def verifier_script(change: TreeChange) -> str:
    """The verifier of one instance: /app holds exactly `after`, or the reward is 0.

    Trailing newlines do not matter, everything else does: a file left over, a link or a directory in place of
    a file, a changed bystander all fail.
    """
    checks = [f"listed {shlex.quote(_listing(change.after))}"]
    checks += [
        f"holds {shlex.quote(path)} {shlex.quote(content.rstrip())}"
        for path, content in sorted(change.after.items())
        if content is not None
    ]
    checks += [f"[ -x {shlex.quote(path)} ]" for path in change.executable]
    return _SCRIPT.replace("CHECKS", " &&\n        ".join(checks))


def _listing(tree: Tree) -> str:
    return "\n".join(sorted(f"{'d' if tree[path] is None else 'f'} ./{path}" for path in tree))


_DOCKERFILE: Final = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY files/ /app/\n"
_SCRIPT: Final = """\
#!/bin/sh
# Reward 1 when /app holds exactly the expected files, with the expected content, and nothing else.
listed() { [ "$(find . -mindepth 1 -printf '%y %p\\n' | LC_ALL=C sort)" = "$1" ]; }
holds() { [ "$(cat "$1")" = "$2" ]; }
check() {
    cd /app &&
        CHECKS
}
mkdir -p /logs/verifier
if check; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
