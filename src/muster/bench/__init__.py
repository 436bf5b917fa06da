"""Benchmarks: both sides of a claim, measured in one run and compared as ratios."""
