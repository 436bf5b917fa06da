"""The fakes of all ports, for tests and simulation; each passes its port's contract tests."""
