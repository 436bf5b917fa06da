"""What a family of starter tasks is: data, and one function from drawn words to an instance.

Law: an instance states the whole tree of /app before and after. The files of the image, the test script and
the proof that doing nothing fails all follow from these two trees; no family writes a test of its own.

    Words ─► Family.make ─► Instance(before, after, solution) ─► verifier_script(after)
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster_suites.starter.words import Words

Tree = Mapping[str, str | None]
"""Path relative to /app -> content of the file; None stands for a directory. Parents are listed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One task, whole. Every file of `executable` must end with its execute bit set.

    Example: `Instance(instruction="Delete the file a.txt.", before={"a.txt": "x\\n", "b.txt": "y\\n"},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks of one kind. `max_turns` is the number of commands that the agent may run."""

    name: str
    make: Callable[[Words], Instance]
    max_turns: int = 1


def verifier_script(instance: Instance) -> str:
    """The verifier of one instance: /app holds exactly `after`, or the reward is 0.

    Trailing newlines do not matter, everything else does: a file left over, a link or a directory in place of
    a file, a changed bystander all fail.
    """
    checks = [f"listed {shlex.quote(_listing(instance.after))}"]
    checks += [
        f"holds {shlex.quote(path)} {shlex.quote(content.rstrip())}"
        for path, content in sorted(instance.after.items())
        if content is not None
    ]
    checks += [f"[ -x {shlex.quote(path)} ]" for path in instance.executable]
    return _SCRIPT.replace("CHECKS", " &&\n        ".join(checks))


def _listing(tree: Tree) -> str:
    return "\n".join(sorted(f"{'d' if tree[path] is None else 'f'} ./{path}" for path in tree))


_SCRIPT = """\
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
