"""The pages and examples keep their word: links lead somewhere, files exist, keys and TOML are accepted."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from muster.config import RunConfig, key_paths, load, validate

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "docs/design.md", "docs/how-to/audit.md")


def code(page: str) -> list[str]:
    """What stands in single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_source_files_that_are_named_exist(page: str) -> None:
    named = [text for text in code(page) if re.fullmatch(r"[\w/]+/\w+\.py", text)]
    places = (ROOT, ROOT / "src", ROOT / "src/muster")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("page", PAGES)
def test_configuration_keys_that_are_named_exist(page: str) -> None:
    sections = "|".join(RunConfig.model_fields)
    text = (ROOT / page).read_text(encoding="utf-8")
    in_code = [c for c in code(page) if re.fullmatch(rf"(?:{sections})\.[a-z_]+", c)]
    in_commands = re.findall(r"(?:--set|-s) ([a-z_.]+)=", text)
    modules = {c for c in in_code if (ROOT / "src/muster" / f"{c.replace('.', '/')}.py").exists()}
    placeholder = {"key"}
    assert {*in_code, *in_commands} - modules - placeholder - {*key_paths()} == set()


def test_the_toml_of_the_readme_is_a_valid_configuration() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        validate(tomllib.loads(block))


def test_the_first_example_is_the_default_written_out() -> None:
    assert load(ROOT / "examples/first_light.toml") == RunConfig()
