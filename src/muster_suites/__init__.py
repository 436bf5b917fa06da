"""Generated task suites: content for training and audits, from a seed. Nothing of a run is decided here."""
