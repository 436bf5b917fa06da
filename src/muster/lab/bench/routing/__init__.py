"""Where turns go: every routing policy on the same work."""
