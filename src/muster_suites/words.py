"""The names of generated tasks, and the chance of one instance.

Law: no word is in two pools, so a held-out task shares no name with a training task, and the few-shot prompt
(`rollout.prompts`, words of `SHOTS` only) shares none with either. Every word is one token of the starter model's
vocabulary when a space precedes it, which keeps commands short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import numpy as np

T = TypeVar("T")
Split = Literal["train", "heldout"]


def _pool(words: str) -> tuple[str, ...]:
    return tuple(words.split())


TRAIN: Final = _pool(
    """
    apple barrel basket bottle bridge butter button candle canyon castle cherry chest coffee copper cotton
    desert dinner dragon eagle engine falcon feather flower forest garden glacier guitar hammer harbor honey
    insect iron island jacket jungle kettle kitchen ladder lantern lemon magnet marble market meadow mirror
    monkey mountain needle night ocean orange palace paper pearl pencil pepper piano pillow planet pocket
    potato rabbit river rocket saddle school shadow silver spider square stone sugar summer table temple
    thunder tiger tomato tunnel valley velvet village violin wagon wheel window winter wood yellow
    """
)
HELDOUT: Final = _pool(
    """
    anchor arrow banana bread brick camera chair clock cloud coat dolphin drum elbow farmer field frog glass
    goat grape horse hotel ink jewel key kite leaf lion mango moon nest onion owl parrot pond queen ribbon
    rose sailor ship shirt train tree turtle umbrella vase whale wolf zebra
    """
)
SHOTS: Final = _pool("bell boat cake corn cup door duck fish hill lake milk nose ring sand snow star sun")


class Words:
    """Seeded chance with the names of one split. Names do not repeat within an instance."""

    def __init__(self, split: Split, rng: np.random.Generator) -> None:
        self._rng: Final = rng
        self._pool: Final = TRAIN if split == "train" else HELDOUT
        self._order: Final[list[str]] = [self._pool[int(i)] for i in rng.permutation(len(self._pool))]
        self._pairs: Final[set[str]] = set()

    def word(self) -> str:
        """A fresh single word: 48 and more of them in an instance."""
        assert self._order, "an instance needs fewer words than a pool holds: use pair()"
        return self._order.pop()

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def file(self) -> str:
        """A fresh file name of one word."""
        return f"{self.word()}.txt"

    def files(self, count: int) -> list[str]:
        return [self.file() for _ in range(count)]

    def lines(self, low: int, high: int) -> list[str]:
        """Between `low` and `high` distinct lines of one word each."""
        return self.words(self.number(low, high))

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
        return int(self._rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def choice(self, options: Sequence[T]) -> T:
        return options[int(self._rng.integers(len(options)))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """`count` distinct ones, in random order."""
        return [options[int(i)] for i in self._rng.permutation(len(options))[:count]]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        return self.sample(options, len(options))

    def hexadecimal(self, digits: int) -> str:
        return "".join(self.choice("0123456789abcdef") for _ in range(digits))
