from __future__ import annotations

import pytest

from muster.sandbox.namespace.ending import from_outside
from muster.sandbox.namespace.processes.supervisor import Exit


@pytest.mark.parametrize(
    ("code", "init_signal", "oom_kills", "expected"),
    [
        (0, 0, 0, False),  # PID 1 exited: somebody inside closed its control descriptor, say
        (139, 11, 0, False),  # a crash of its own making
        (137, 9, 1, False),  # its own memory limit
        (137, 9, 0, True),
        (-9, None, 0, True),  # bubblewrap itself
        (-9, 9, 1, True),
        (137, None, 0, True),  # an older kernel does not say, and PID 1 never exits with that code
        (137, None, 1, False),
        (1, None, 0, False),
    ],
)
def test_the_model_is_blamed_on_evidence_alone(
    code: int, init_signal: int | None, oom_kills: int, expected: bool
) -> None:
    end = Exit(code=code, cpu_s=0.0, init_signal=init_signal)
    assert from_outside(end, oom_kills=oom_kills) is expected
