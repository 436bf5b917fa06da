"""Each law can be broken, and is seen to be: a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from muster.lab.world.laws import Law
from muster.lab.world.simulate import CAUGHT_WITHIN, live


@pytest.mark.parametrize("law", list(Law))
def test_a_law_broken_on_purpose_is_noticed_as_that_law(law: Law) -> None:
    for seed in range(CAUGHT_WITHIN):
        if (violation := live(seed, broken=law).violation) is not None:
            assert violation.law is law
            return
    pytest.fail(f"{law} was broken in {CAUGHT_WITHIN} worlds and nobody noticed")
