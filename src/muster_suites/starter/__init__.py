"""The starter suite: small terminal tasks, generated from a seed, that a 135M model can begin to solve."""

from muster_suites.starter.family import Family, Instance, verifier_script
from muster_suites.starter.generate import FAMILIES, generate, instances

__all__ = ["FAMILIES", "Family", "Instance", "generate", "instances", "verifier_script"]
