"""Sandbox pool: who gets the next sandbox, and for how long."""
