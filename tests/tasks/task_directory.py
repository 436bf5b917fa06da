"""Writes small Harbor task directories for tests."""

from pathlib import Path


def write_task(root: Path, name: str = "one", toml: str = 'schema_version = "1.4"\n', **files: str) -> Path:
    """A task that loads, with `toml` and `files` (path -> content) put over the defaults."""
    directory = root / name
    contents = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM debian:bookworm-slim\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    } | files
    for path, text in contents.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory
