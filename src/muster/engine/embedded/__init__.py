"""Our own engine, in a process of its own, on the CPU: continuous batching over a slot cache."""
