"""One legacy Terminal-Bench task, converted to a Harbor task directory.

    task.yaml ───────────────► instruction.md, task.toml
    docker-compose.yaml ─────► collapsed: user, environment, workdir into task.toml
    its build context ───────► environment/            without the tests and the solution, unless its Dockerfile
    run-tests.sh, tests/ ────► tests/                  asks for them by name
    solution.sh ─────────────► solution/solve.sh

Law: the reward is the exit code of run-tests.sh. What the tests print never counts: an agent's program can print, too.
Nothing is run here. What cannot be carried over is a `TaskError`; what a reader should know is a note.

Source: the task format of terminal-bench 0.2. There, printed test results were parsed, and an unexpectedly passing
test failed the task; by exit code it passes.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.errors import TaskError
from muster.tasks import compose
from muster.tasks.compose import ComposeImage, read_compose
from muster.tasks.source import read_text, regular
from muster.tasks.task_toml import validation_messages
from muster.tasks.yaml_file import load_yaml

_WITHHELD: Final = ("task.yaml", *compose.NAMES, "run-tests.sh", "solution.sh", "solution.yaml", "tests")
"""What an agent must not find in its image, or has no use for."""

_DOWNLOADS: Final = re.compile(r"^[^#\n]*\b(?:curl|wget|apt-get|apt|pip3?|uvx?|npm|cargo|git clone)\b", re.MULTILINE)

_TEST_SH: Final = """\
#!/bin/bash
# The reward is the exit code of run-tests.sh; nothing that it prints counts.
/bin/mkdir -p /logs/verifier
reward=0
if /bin/bash /tests/run-tests.sh; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
"""


class TaskYaml(BaseModel):
    """The keys of task.yaml that have a meaning here, or are metadata."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    instruction: str = Field(min_length=1)
    difficulty: Literal["easy", "medium", "hard", "unknown"]
    author_name: str = "unknown"
    author_email: str = "unknown"
    category: str = "software_engineering"
    tags: list[str] = Field(default_factory=list[str])
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """Build context of the image. `dockerfile` is None for a ready-made image."""

    context: Path
    dockerfile: Path | None
    service: ComposeImage | None


def convert(source: Path, target: Path) -> list[str]:
    """Write the Harbor form of `source` into the new directory `target`; returns the notes.

    Raises `TaskError`; `target` is then incomplete and the caller's to remove.
    """
    source = source.resolve()
    _only_plain_entries(source)
    config = read_task_yaml(regular(source, "task.yaml"))
    script = read_text(regular(source, "run-tests.sh"))
    build = _build(source)
    downloads = bool(_DOWNLOADS.search(script))
    target.mkdir()
    notes = [*_environment(source, target / "environment", build), *_solution(source, target / "solution")]
    _tests(source, target / "tests")
    (target / "instruction.md").write_text(config.instruction.strip() + "\n", encoding="utf-8")
    (target / "task.toml").write_text(tomli_w.dumps(_task_toml(config, build, downloads=downloads)), encoding="utf-8")
    if downloads:
        notes.append("its tests install software: verifier.network_mode = 'public'; better to put it into the image")
    return notes


def read_task_yaml(path: Path) -> TaskYaml:
    """Raises `TaskError` for what is wrong in it, and for what cannot be carried over."""
    found = load_yaml(path)
    if not isinstance(found, dict):
        raise TaskError(f"{path}: expected a table of keys")
    try:
        config = TaskYaml.model_validate(found)
    except ValidationError as error:
        raise TaskError("; ".join(validation_messages(path, error))) from None
    if config.parser_name != "pytest":
        raise TaskError(f"{path}: parser_name: {config.parser_name!r} is not supported; only 'pytest' is")
    if config.run_tests_in_same_shell:
        raise TaskError(f"{path}: run_tests_in_same_shell: the agent's shell is gone when its files are graded")
    return config


def _only_plain_entries(source: Path) -> None:
    for path in source.rglob("*"):
        if not (path.is_symlink() or path.is_file() or path.is_dir()):
            raise TaskError(f"{path}: neither a file, a directory nor a link; remove it")


def _build(source: Path) -> _Build:
    for name in compose.NAMES:
        path = source / name
        if not path.exists():
            continue
        service = read_compose(regular(source, name), {})
        if literal := [key for key, value in service.env.items() if "${" in value]:
            key = f"services.{service.service}.environment.{literal[0]}"
            raise TaskError(f"{path}: {key}: a literal '${{' cannot be carried over; set it in the Dockerfile")
        if service.health is None and not service.idle:
            raise TaskError(
                f"{path}: services.{service.service}.command: {service.argv!r} is more than waiting, "
                "and without a healthcheck nothing tells when it works"
            )
        dockerfile = service.dockerfile or (None if service.docker_image else service.context / "Dockerfile")
        if dockerfile is not None:
            regular(source, dockerfile.relative_to(source).as_posix())
        return _Build(context=service.context, dockerfile=dockerfile, service=service)
    return _Build(context=source, dockerfile=regular(source, "Dockerfile"), service=None)


def _environment(source: Path, target: Path, build: _Build) -> list[str]:
    target.mkdir()
    if build.service and (text := _compose_json(build.service)):
        (target / compose.NAMES[0]).write_text(text, encoding="utf-8")
    if build.dockerfile is None:
        return []
    asked_for = _copied_by(read_text(build.dockerfile)) & set(_WITHHELD) if build.context == source else set[str]()
    for entry in sorted(build.context.iterdir()):
        if build.context != source or entry.name not in _WITHHELD or entry.name in asked_for:
            _copy(entry, target / entry.name)
    shutil.copy(build.dockerfile, target / "Dockerfile")
    names = ", ".join(sorted(asked_for))
    return [f"its Dockerfile puts {names} into the image, where the agent can read it"] if names else []


def _compose_json(service: ComposeImage) -> str | None:
    """Compose file (JSON is YAML) of what a task.toml has no key for; None when there is nothing."""
    main: dict[str, Any] = {}
    if service.build_args or service.target:
        target = {"target": service.target} if service.target else {}
        main["build"] = {"context": ".", "args": dict(service.build_args), **target}
    if not service.idle:
        parts = {"entrypoint": service.entrypoint, "command": service.command}
        main |= {key: list(words) for key, words in parts.items() if words}
    return json.dumps({"services": {"main": main}}, indent=2).replace("$", "$$") + "\n" if main else None


def _copied_by(dockerfile: str) -> set[str]:
    """First parts of the paths that COPY and ADD name."""
    joined = re.sub(r"\\[ \t]*\n", " ", dockerfile)
    lines = re.findall(r"^[ \t]*(?:COPY|ADD)[ \t]+(.*)$", joined, re.MULTILINE | re.IGNORECASE)
    words = (word for line in lines if "--from=" not in line for word in re.findall(r'[^\s\[\],"]+', line))
    return {word.removeprefix("./").strip("/").partition("/")[0] for word in words}


def _solution(source: Path, target: Path) -> list[str]:
    if (source / "solution.yaml").exists() and not (source / "solution.sh").exists():
        raise TaskError(f"{source / 'solution.yaml'}: keystrokes are not supported; write them as solution.sh")
    if not (source / "solution.sh").exists():
        return ["it has no reference solution"]
    target.mkdir()
    shutil.copy(regular(source, "solution.sh"), target / "solve.sh")
    (target / "solve.sh").chmod(0o755)
    return []


def _tests(source: Path, target: Path) -> None:
    tests = source / "tests"
    if tests.is_symlink():
        raise TaskError(f"{tests}: reached through a symbolic link; put the files themselves there")
    for name in ("test.sh", "run-tests.sh"):
        if (tests / name).exists():
            raise TaskError(f"{tests / name}: the name is needed at /tests; call it something else")
    if tests.is_dir():
        _copy(tests, target)
    else:
        target.mkdir()
    shutil.copy(source / "run-tests.sh", target / "run-tests.sh")
    (target / "test.sh").write_text(_TEST_SH, encoding="utf-8")
    for name in ("test.sh", "run-tests.sh"):
        (target / name).chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy(source, target, follow_symlinks=False)


def _task_toml(config: TaskYaml, build: _Build, *, downloads: bool) -> dict[str, Any]:
    service = build.service
    metadata = config.model_dump(
        include={
            "author_name", "author_email", "difficulty", "category", "tags",
            "estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min",
        },
        exclude_none=True,
    )  # fmt: skip
    agent: dict[str, Any] = {"timeout_sec": config.max_agent_timeout_sec}
    verifier: dict[str, Any] = {"timeout_sec": config.max_test_timeout_sec, "env": {"TEST_DIR": "/tests"}}
    if downloads:
        verifier["network_mode"] = "public"
    if service and service.user:
        agent["user"], verifier["user"] = service.user, "root"
    tables: dict[str, Any] = {"schema_version": "1.4", "metadata": metadata, "agent": agent, "verifier": verifier}
    if service and (environment := _environment_table(service)):
        tables["environment"] = environment
    return tables


def _environment_table(service: ComposeImage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "docker_image": service.docker_image,
        "workdir": service.workdir,
        "env": {name: value for name, value in service.env.items() if name != "TEST_DIR"},
    }
    if service.health is not None:
        found["healthcheck"] = {
            "command": service.health.command,
            "interval_sec": service.health.interval_s,
            "timeout_sec": service.health.timeout_s,
            "start_period_sec": service.health.start_period_s,
            "retries": service.health.retries,
        }
    return {key: value for key, value in found.items() if value}
