"""The same in real sandboxes, in wall time, beside its prediction."""
