"""The starter suite: small terminal tasks, generated from a seed, that a 135M model can begin to solve."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Family
from muster_suites.starter.one_command import ONE_COMMAND
from muster_suites.starter.relayed import RELAYED

STARTER: Final[tuple[Family, ...]] = ONE_COMMAND + RELAYED
