"""What the suites `website` and `api` share: a small service with real state, and the check of that state."""
