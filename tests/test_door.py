"""`import muster`: cheap, typed, and all that it promises is there."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import muster
import muster_suites
from muster.config import RunConfig, given
from muster.errors import ConfigError

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
HEAVY = ("torch", "transformers", "typer", "pydantic", "aiohttp", "rich", "jinja2")


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = f"import sys, muster; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_that_is_promised_is_there_and_no_port_loads_torch() -> None:
    script = (
        "import sys, muster\n"
        "for name in {*muster.__all__} - {'train', 'resume', 'evaluate'}: getattr(muster, name)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert {*muster.__all__} <= {*dir(muster)}
    with pytest.raises(AttributeError, match="no attribute 'trainn'"):
        muster.trainn  # noqa: B018


def test_the_packages_tell_type_checkers_that_they_are_typed() -> None:
    for package in (muster, muster_suites):
        assert (Path(package.__path__[0]) / "py.typed").is_file()


def test_a_configuration_may_be_given_in_four_ways(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[loop]\nsteps = 3\n")
    three = RunConfig.model_validate({"loop": {"steps": 3}})
    assert given(None) == RunConfig()
    assert [given(way) for way in (three, path, str(path), {"loop": {"steps": 3}})] == [three] * 4
    with pytest.raises(ConfigError, match=r"did you mean 'loop\.steps'"):
        given({"loop": {"step": 3}})


def test_what_the_changelog_says_has_moved_is_where_it_says() -> None:
    rows = re.findall(r"^\| `muster\S+`.* \| (.*) \|$", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 20
    for name in named:
        assert pydoc.locate(name) is not None, name
