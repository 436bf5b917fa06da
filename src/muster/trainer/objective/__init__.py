"""Formulas of the objective, pure: advantages, corrections, losses."""
