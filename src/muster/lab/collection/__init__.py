"""Simulated collections of one batch: programs of declared length on emulated engines, the real orchestrator."""
