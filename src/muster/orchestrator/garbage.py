"""Garbage collection of the controller's process, made rarer: how often it looks for cycles.

Law: nothing is leaked, only found later. A controller holds what thousands of live trajectories are made of, and
nearly all of it survives every look: with Python's own thresholds (a look at the young after 700 allocations, at all
when a quarter is new) looking takes 3 % of the CPU time with 100 live trajectories, and 16 % with 2,000.
What was there before the run (modules, classes) is not looked at again.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

YOUNG_OBJECTS = 20_000
"""Allocated, and not freed since the last look, before the next: some 20 MB that may wait for it."""


@contextmanager
def seldom_collected() -> Generator[None]:
    """Collect garbage seldom, as described, in this process, until it ends."""
    _, second, third = before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, second, third)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
