"""Suites of generated tasks in Harbor format: terminal, repo, website, api; five difficulties, two splits."""
