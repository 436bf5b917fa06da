"""Simulated worlds with faults, and the laws that runs obey in them: `muster sim`."""
