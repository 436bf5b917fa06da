"""Where a run is put together: the only place that picks adapters, and the command line over it."""
