"""Packages of an interpreter, and what is said when it lacks a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from muster import clock
from muster.engine.servers.interpreter import installed, interpreter, require
from muster.errors import ConfigError


def script(folder: Path, words: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_says_which_distributions_it_has_without_importing_any() -> None:
    found = clock.run(installed(sys.executable, ("numpy", "no-such-distribution")))
    assert set(found) == {"numpy"}


def test_one_that_is_not_named_is_ours() -> None:
    assert interpreter("") == sys.executable
    assert interpreter("/opt/python") == "/opt/python"


@pytest.mark.parametrize(
    ("words", "says"),
    [("echo bad luck >&2; exit 3", "no Python interpreter: bad luck"), ("echo hello", "no Python interpreter")],
)
def test_what_is_no_interpreter_is_refused_by_its_key(words: str, says: str, tmp_path: Path) -> None:
    python = script(tmp_path, words)
    with pytest.raises(ConfigError, match=f"engine.python: {python} is {says}"):
        clock.run(installed(python, ("numpy",)))


def test_what_is_not_there_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"engine.python: /no/such/python: No such file"):
        clock.run(installed("/no/such/python", ("numpy",)))


def test_one_that_never_answers_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine.python: .* has not answered within 0.2 s"):
        clock.run(installed(script(tmp_path, "exec sleep 600"), (), timeout_s=0.2))


@pytest.mark.parametrize("version", ["0.5.23", "0.5.24rc1", "0.6", "1.0.0+cu129", "0.33rc1"])
def test_a_version_that_is_new_enough_is_taken(version: str) -> None:
    require({"server": version}, "server", "python", oldest=(0, 5, 23), install="server")


@pytest.mark.parametrize("version", ["0.5.22", "0.4.99", "0.5"])
def test_an_old_version_is_refused_with_the_one_that_is_needed(version: str) -> None:
    with pytest.raises(ConfigError, match=r"0.5.23 or later is needed: python -m pip install 'server>=0.5'"):
        require({"server": version}, "server", "python", oldest=(0, 5, 23), install="server>=0.5")
