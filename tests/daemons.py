"""Real daemons for the tests: a private Docker or Podman with a base image, started once per test process.

Where one cannot start, its tests are skipped and say why.
"""

from __future__ import annotations

import contextlib
import functools

import pytest

from muster.lab.bench.sandbox import daemons

BASE = daemons.BASE
KINDS = daemons.KINDS

_open = contextlib.ExitStack()


def host(kind: str) -> str:
    """The `docker_host` of a running daemon that has the base image. Skips the test where there is none."""
    answer = _start(kind)
    if isinstance(answer, daemons.Unavailable):
        pytest.skip(f"no {kind} for the tests: {answer}")
    return answer


def close() -> None:
    """End what this test process started; `conftest` calls it."""
    _open.close()


@functools.cache
def _start(kind: str) -> str | daemons.Unavailable:
    try:
        address = _open.enter_context(KINDS[kind]())
    except daemons.Unavailable as reason:
        return reason
    daemons.import_base(address)
    return address
