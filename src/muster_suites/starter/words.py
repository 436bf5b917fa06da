"""Where the starter tasks get their names from.

Law: no word is in two pools, so a held-out task shares no file name and no content with a training task, and
the few-shot prompt (`rollout.prompts`, words of `SHOTS` only) shares none with either. Every word is one token
of the starter model's vocabulary when a space precedes it, which keeps commands short.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

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
    """Draws for one instance, without repetition, from the pool of its split."""

    def __init__(self, split: Split, rng: np.random.Generator) -> None:
        pool = TRAIN if split == "train" else HELDOUT
        self._order: list[str] = [pool[i] for i in rng.permutation(len(pool))]
        self._rng = rng

    def word(self) -> str:
        assert self._order, "an instance needs fewer words than a pool holds"
        return self._order.pop()

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def number(self, low: int, high: int) -> int:
        """Uniform over low..high, both included."""
        return int(self._rng.integers(low, high + 1))

    def file(self) -> str:
        """A fresh file name."""
        return f"{self.word()}.txt"

    def files(self, count: int) -> list[str]:
        return [self.file() for _ in range(count)]

    def lines(self, low: int, high: int) -> list[str]:
        """Between `low` and `high` distinct lines of one word each."""
        return self.words(self.number(low, high))
