"""Formulas of the objective, pure: advantages, corrections, losses, the numerics that are reported."""
