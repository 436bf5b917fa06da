"""The pages and examples keep their word: links lead somewhere, commands parse, keys and TOML are accepted.

Law: what a page shows can be pasted. Pages that are made when the documentation is built are made here too, without
the tool that builds it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import posixpath
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from muster.app.cli.shared import app
from muster.config import RunConfig, key_paths, load, validate
from muster.errors import MusterError
from muster.lab.collection.collection import CollectionWorld
from muster.tasks.harbor import load_directory
from muster.tasks.task_toml import TaskToml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = tuple(
    sorted(["README.md", "AGENTS.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md"))])
)
FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
SHELL = ("", "console", "sh")
PLACEHOLDER_KEYS = {"key", "section.key"}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return FENCE.sub("", read(page))


def code(page: str) -> list[str]:
    """What stands in single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def blocks(page: str, *kinds: str) -> Iterator[str]:
    return (m["body"] for m in FENCE.finditer(read(page)) if m["kind"] in kinds)


def commands(page: str) -> list[list[str]]:
    """Every call of muster that a block shows, as words."""
    found: list[list[str]] = []
    for body in blocks(page, *SHELL):
        for line in body.replace("\\\n", " ").splitlines():
            call = re.match(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?muster ((?:[a-z]|--).*)$", line)
            if call and "COMMAND" not in call[1] and not re.match(r"\S+  step ", call[1]):
                found.append(shlex.split(call[1], comments=True))
    return found


@cache
def generated() -> dict[str, str]:
    """The pages that the documentation's hook makes."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "hooks/reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {f"docs/{path}": text for path, text in module.pages().items()}


def anchors(page: str) -> set[str]:
    """Of the headings, as the site and GitHub make them; a heading may name its own."""
    text = generated().get(page) or read(page)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        own = re.search(r"\{ #([\w-]+) \}$", heading)
        words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        found.add(own[1] if own else re.sub(r"\s+", "-", words))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    dead: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        there = target in generated() or (ROOT / target).exists()
        if not there or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES)
def test_source_files_that_are_named_exist(page: str) -> None:
    named = [text for text in code(page) if re.fullmatch(r"[\w/]+/\w+\.py", text)]
    places = (ROOT, ROOT / "src", ROOT / "src/muster")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("page", PAGES)
def test_configuration_keys_that_are_named_exist(page: str) -> None:
    sections = "|".join(RunConfig.model_fields)
    in_code = [c for c in code(page) if re.fullmatch(rf"(?:{sections})\.[a-z_.]+", c)]
    in_text = re.findall(r"(?:--set|-s) ([a-z_.]+)=", read(page))
    modules = {c for c in in_code if (ROOT / "src/muster" / f"{c.replace('.', '/')}.py").exists()}
    objects = {c for c in in_code if (ROOT / "src/muster" / f"{c.partition('.')[0]}.py").exists()}
    assert {*in_code, *in_text} - modules - objects - PLACEHOLDER_KEYS - {*key_paths()} == set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_shown_parse(page: str) -> None:
    """Names, options and values are those of the command line; what is set would be accepted."""
    for words in commands(page):
        context = parsed(words)
        settings = context.params.get("overrides") or context.params.get("settings") or ()
        if not context.params.get("config"):
            try:
                load(None, settings)
            except MusterError as error:
                pytest.fail(f"muster {' '.join(words)}: {error}")


def parsed(words: list[str]) -> Any:
    """The context of the command that `words` call; nothing of it runs."""
    command: Any = get_command(app)
    called, rest = "muster", words
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"muster {' '.join(words)}: {called} has no such command"
        command, called, rest = command.commands[rest[0]], f"{called} {rest[0]}", rest[1:]
    return command.make_context(called, list(rest))


@pytest.mark.parametrize("page", PAGES)
def test_toml_that_is_shown_is_accepted(page: str) -> None:
    """The first line says what it is (`# task.toml`, `# world.toml`); without a word it is a run's configuration."""
    for body in blocks(page, "toml"):
        values = tomllib.loads(body)
        if body.startswith("# task.toml"):
            TaskToml.model_validate(values)
        elif body.startswith("# world.toml"):
            CollectionWorld.model_validate(values)
        else:
            validate(values, source=page)


@pytest.mark.parametrize("page", PAGES)
def test_python_that_is_shown_is_python(page: str) -> None:
    for body in blocks(page, "python"):
        for line in ast.walk(ast.parse(body)):
            if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("muster"):
                module = importlib.import_module(line.module or "")
                assert [a.name for a in line.names if not hasattr(module, a.name)] == [], line.module


@pytest.mark.parametrize("page", [p for p in PAGES if any("<<'EOF'" in body for body in blocks(p, "sh"))])
def test_files_that_a_page_writes_are_whole(page: str, tmp_path: Path) -> None:
    """What a reader pastes makes a task that loads, and Python that compiles."""
    for body in blocks(page, "sh"):
        subprocess.run(["bash", "-euc", body], cwd=tmp_path, check=True, capture_output=True)
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), path.name, "exec")
    for directory in tmp_path.iterdir():
        if directory.is_dir():
            assert load_directory(directory, strict=True).tasks


def test_what_is_shown_of_the_report_stands_in_it() -> None:
    """Excerpts come from the whole report beside them, so that all of them are of one run."""
    whole = {line.rstrip() for line in read("docs/tutorials/report.txt").splitlines()}
    shown = [*blocks("docs/tutorials/report.md", "")]
    shown += [body for body in blocks("README.md", "") if body.startswith("1. How long")]
    assert len(shown) == 8
    assert [line for body in shown for line in body.splitlines() if line.rstrip() not in whole] == []


def test_the_readme_has_a_configuration_and_is_short() -> None:
    assert list(blocks("README.md", "toml"))
    assert len(read("README.md").splitlines()) <= 150


def test_every_page_is_in_the_navigation() -> None:
    """The build says so too, but not everybody builds."""
    text = read("mkdocs.yml")
    listed = re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE)
    assert yaml.safe_load(text)["nav"]
    assert {f"docs/{p}" for p in listed} == {p for p in PAGES if p.startswith("docs/")} | {*generated()}
    assert len(listed) == len(set(listed))


def test_the_reference_names_every_key_and_every_command() -> None:
    pages = generated()
    for key in key_paths():
        leaf = f"`{key}`" in pages["docs/reference/configuration.md"]
        assert leaf or f"# {key}" in pages["docs/reference/configuration.md"] or key.endswith(".kind"), key
    assert "## muster tasks generate {" in pages["docs/reference/commands.md"]


def test_the_first_example_is_the_default_written_out() -> None:
    assert load(ROOT / "examples/first_light.toml") == RunConfig()
