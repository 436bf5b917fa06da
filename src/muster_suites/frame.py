"""What a family of generated tasks is: data, and one function from a draw to an instance.

Law: an instance is the content of one Harbor task directory and nothing else; the same draw gives the same
instance. The agent sees `files` and the instruction; `tests` and `solution` it never sees.

    Draw(difficulty, words of the split, seeded chance) ─► Family.make ─► Instance ─► write.generate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import numpy as np

from muster_suites.starter.words import HELDOUT, TRAIN, Split

T = TypeVar("T")
SuiteName = Literal["terminal", "repo", "website", "api"]

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


Files = Mapping[str, File | str | bytes]
"""Relative path -> file; a bare text or bytes is a file of mode 0644."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One task, whole.

    files       of `environment/`, beside the Dockerfile: the build context
    tests       of `tests/`; holds `check.py`, which `test.sh` runs isolated and which writes the reward
    solution    bash source of `solution/solve.sh`, run in the working directory

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
        assert "check.py" in self.tests and "test.sh" not in self.tests, sorted(self.tests)
        assert self.max_turns >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks of one kind. `levels` says in one line each what the five difficulties mean."""

    name: str
    suite: SuiteName
    make: Callable[[Draw], Instance]
    levels: tuple[str, str, str, str, str]


class Draw:
    """The chance of one instance: seeded, and with the names of one split only.

    Names never repeat within an instance. The pools of the splits share no word, so that no held-out task shares a
    name with a training task.
    """

    def __init__(self, *, difficulty: int, split: Split, rng: np.random.Generator) -> None:
        assert EASIEST <= difficulty <= HARDEST, difficulty
        self.difficulty: Final = difficulty
        self.split: Final[Split] = split
        self.rng: Final = rng
        self._pool: Final[tuple[str, ...]] = TRAIN if split == "train" else HELDOUT
        self._order: Final[list[str]] = [self._pool[int(i)] for i in rng.permutation(len(self._pool))]
        self._pairs: set[str] = set()

    def word(self) -> str:
        """A fresh single word: 48 and more of them in an instance."""
        assert self._order, "an instance needs fewer words than a pool holds: use pair()"
        return self._order.pop()

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def pair(self, separator: str = "-") -> str:
        """A fresh name of two words, as `apple-river`; over a thousand of them in an instance."""
        while True:
            first, second = (self.choice(self._pool) for _ in range(2))
            name = f"{first}{separator}{second}"
            if first != second and name not in self._pairs:
                self._pairs.add(name)
                return name

    def pairs(self, count: int, separator: str = "-") -> list[str]:
        return [self.pair(separator) for _ in range(count)]

    def number(self, low: int, high: int) -> int:
        """Uniform over low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """`count` distinct ones, in random order."""
        return [options[int(i)] for i in self.rng.permutation(len(options))[:count]]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        return self.sample(options, len(options))

    def hexadecimal(self, digits: int) -> str:
        return "".join(self.choice("0123456789abcdef") for _ in range(digits))

    def at(self, first: T, second: T, third: T, fourth: T, fifth: T) -> T:
        """The value for this difficulty."""
        return (first, second, third, fourth, fifth)[self.difficulty - 1]


def in_python(source: str) -> str:
    """Bash source that runs Python source, for solutions."""
    return f"python3 - <<'PYTHON'\n{source.strip()}\nPYTHON\n"
