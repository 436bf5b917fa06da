"""Routing benchmark: every routing policy on the same work."""
