"""Family of generated tasks: data, and one function from a draw to an instance.

Law: an instance is the content of one Harbor task directory and nothing else; the same draw gives the same
instance. The agent sees `files` and the instruction; `tests` and `solution` it never sees.

    Words of the split, seeded ┐
    Draw: Words, a difficulty  ┴─► Family.make ─► Instance ─► write.generate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import numpy as np

from muster_suites.words import Split, Words

T = TypeVar("T")
SuiteName = Literal["starter", "terminal", "repo", "website", "api"]

EASIEST: Final = 1
HARDEST: Final = 5

BASE: Final = """\
FROM debian:bookworm-slim
RUN git --version && python3 --version || (apt-get update && apt-get install -y --no-install-recommends git python3)
"""
"""How a Dockerfile begins. The second line does nothing where the image has both; it is the same for all tasks, so
that its layer is made once."""

DOCKERFILE: Final = BASE + "WORKDIR /app\nCOPY files/ /app/\n"
"""For instances whose files all lie below `files/` and appear below /app."""

TEST_SCRIPT: Final = """\
#!/bin/bash
exec /usr/bin/env -i /usr/bin/python3 -I -S -B /tests/check.py
"""
"""Isolated (-I) and without the site module (-S), whose sitecustomize.py lies in /etc, where an agent may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Content and permission bits of one file."""

    content: str | bytes
    mode: int = 0o644

    @property
    def data(self) -> bytes:
        return self.content.encode() if isinstance(self.content, str) else self.content


Files = Mapping[str, File | str | bytes | None]
"""Relative path -> file, None for a directory. A bare text or bytes is a file of mode 0644, of `tests/` 0600."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One task, whole.

    files       of `environment/`, beside the Dockerfile: the build context
    tests       of `tests/`; holds `check.py`, which our `test.sh` runs isolated and which writes the reward, or a
                `test.sh` of its own
    solution    bash source of `solution/solve.sh`, run in the working directory, or a script with an own #! line

    Example: `Instance(instruction="Delete /app/a.txt.", files={"files/a.txt": "x"}, tests={"check.py": source},
    solution="rm a.txt", max_turns=3)`
    """

    instruction: str
    files: Files
    tests: Files
    solution: str
    max_turns: int
    dockerfile: str = DOCKERFILE
    agent_timeout_s: int = 300
    verifier_timeout_s: int = 60
    memory_mb: int = 512
    storage_mb: int = 256
    agent_user: str | None = None  # None: root
    healthcheck: Mapping[str, Any] | None = None  # Harbor's table: command, interval_sec, ...; makes CMD a service
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert ("check.py" in self.tests) != ("test.sh" in self.tests), sorted(self.tests)
        assert self.max_turns >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks of one kind. `levels` says in one line each what the five difficulties mean; empty: it has none."""

    name: str
    suite: SuiteName
    make: Callable[[Draw], Instance]
    levels: tuple[str, str, str, str, str] | tuple[()] = ()


class Draw(Words):
    """The chance of one instance of a difficulty."""

    def __init__(self, split: Split, rng: np.random.Generator, *, difficulty: int) -> None:
        assert EASIEST <= difficulty <= HARDEST, difficulty
        super().__init__(split, rng)
        self.difficulty: Final = difficulty

    def at(self, first: T, second: T, third: T, fourth: T, fifth: T) -> T:
        """The value for this difficulty."""
        return (first, second, third, fourth, fifth)[self.difficulty - 1]


def in_python(source: str) -> str:
    """Bash source that runs Python source, for solutions."""
    return f"python3 - <<'PYTHON'\n{source.strip()}\nPYTHON\n"
