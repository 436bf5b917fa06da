"""Several replicas as one engine."""
