from __future__ import annotations

import pytest

from muster.sandbox.ending import from_outside
from muster.sandbox.shell import Exit


@pytest.mark.parametrize(
    ("code", "init_signal", "oom_kills", "busy", "expected"),
    [
        (3, 0, 0, True, False),  # exit 3
        (137, 0, 0, True, False),  # exit 137 is an exit, not a kill
        (139, 11, 0, True, False),  # a crash of its own making
        (137, 9, 1, True, False),  # its own memory limit
        (137, 9, 0, True, True),
        (137, 9, 0, False, True),
        (-9, None, 0, True, True),  # bubblewrap itself
        (-9, 9, 1, True, True),
        (137, None, 0, True, False),  # an older kernel cannot tell: the benefit goes to the trajectory
        (137, None, 0, False, True),  # an idle shell does not exit
        (1, None, 0, False, False),
    ],
)
def test_the_model_is_blamed_on_evidence_alone(
    code: int, init_signal: int | None, oom_kills: int, busy: bool, expected: bool
) -> None:
    end = Exit(code=code, cpu_s=0.0, init_signal=init_signal)
    assert from_outside(end, oom_kills=oom_kills, busy=busy) is expected
