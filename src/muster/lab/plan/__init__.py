"""Plans of what to change or buy: a world fitted to a run's journal, one change tried after the other."""
