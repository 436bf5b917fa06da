"""Composition of a run: the only place that picks adapters, and the command line over it."""
