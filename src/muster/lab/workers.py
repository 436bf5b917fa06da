"""Worker processes of a benchmark: they leave nothing behind, and end with the process that started them.

    this process ─ spawns ─► workers ─ each watches this one: it ended, however ─► clean up, exit
                   SIGTERM or Ctrl-C for a worker ─► an exception where it works: what it opened is closed

Law: a pool of the standard library has workers that wait for work for ever when its owner was killed, and that SIGTERM
ends without closing anything. What a worker opens (a journal's directory) is gone with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from muster import clock

GRACE_S = 3.0
"""Given to a worker without an owner to clean up."""


@contextmanager
def workers(count: int, begin: Callable[[], None] | None = None) -> Generator[ProcessPoolExecutor]:
    """`begin`: called in each worker first. What has not begun when the body is left, by whatever, is not begun.

    Example: `with workers(4) as pool: results = list(pool.map(measure, jobs))`
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(begin,)) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(begin: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_follow, daemon=True, name="follow").start()
    if begin is not None:
        begin()


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _follow() -> None:
    """End with the owner. The exception reaches what runs; a pool's worker would then wait for more work."""
    owner = multiprocessing.parent_process()
    assert owner is not None, "runs in a worker"
    owner.join()
    os.kill(os.getpid(), signal.SIGTERM)
    clock.block(GRACE_S)
    os._exit(1)
