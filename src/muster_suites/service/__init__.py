"""Service that the suites `website` and `api` share: small, with real state, and the check of that state."""
