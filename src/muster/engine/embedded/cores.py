"""Number of threads that work on one operation.

Law: only operations that last longer than waking a sleeping thread (about 50 us) are given more than one. A step
over a few rows is a thousand small operations and two hundred large ones; with every one of them waiting at a
barrier, a single busy neighbour on the machine slows the engine by an order of magnitude.

    cores.begin(tokens)      small operations of this step: one thread while there are few tokens
    with cores: ...          a large operation: all threads
"""

from __future__ import annotations

from types import TracebackType

import torch

LIGHT_TOKENS = 128
"""Up to this many tokens an element-wise operation over the residual stream takes less than 100 us alone."""


class Cores:
    """The thread count belongs to the calling thread of the matrix library; setting it costs 0.1 us."""

    def __init__(self, total: int) -> None:
        self._total = self._small = total

    def begin(self, tokens: int) -> None:
        """Choose for the small operations of a step over `tokens` tokens."""
        self._small = 1 if tokens <= LIGHT_TOKENS else self._total
        torch.set_num_threads(self._small)

    def end(self) -> None:
        """Back to all threads."""
        self._small = self._total
        torch.set_num_threads(self._total)

    def __enter__(self) -> None:
        torch.set_num_threads(self._total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_num_threads(self._small)
