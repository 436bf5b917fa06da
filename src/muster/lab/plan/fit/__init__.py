"""From a run's journal to a world that would have given it: engines, programs, and what they shared."""
