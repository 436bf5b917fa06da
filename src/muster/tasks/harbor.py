"""Harbor task directories in, `Task`s out.

Law: this file reads and never runs anything a task author wrote. What is wrong with a directory is a
`TaskError` that names the file, the key and the fix; a broken task never hides the next one.

    <task>/  task.toml  instruction.md  environment/Dockerfile  tests/test.sh  [solution/solve.sh]
       └─ read_toml ─► host variables resolved ─► Task (id = name of the directory, digest over all of it)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.errors import TaskError
from muster.tasks.content import directory_digest
from muster.tasks.task_toml import TaskToml, read_toml
from muster.types import ImageSpec, Limits, Task, VerifierSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTasks:
    """What a directory of tasks gave: the good ones, sorted by name, and one problem per broken one."""

    tasks: tuple[Task, ...]
    problems: tuple[TaskError, ...] = ()


def load_directory(root: Path, *, strict: bool = False, variables: Mapping[str, str] | None = None) -> LoadedTasks:
    """Load every sub-directory of `root` that holds a task.toml (or `root` itself, if it does).

    Raises `TaskError` if there is none and, when `strict`, one that lists all problems if there is any.
    """
    if not root.is_dir():
        raise TaskError(f"{root}: no such directory")
    single = (root / "task.toml").exists()
    directories = [root] if single else sorted(path.parent for path in root.glob("*/task.toml"))
    if not directories:
        raise TaskError(f"{root}: no task.toml in it or in its sub-directories")
    tasks: list[Task] = []
    problems: list[TaskError] = []
    for directory in directories:
        try:
            tasks.append(load_task(directory, variables=variables))
        except TaskError as problem:
            problems.append(problem)
    if strict and problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise TaskError(f"{root}: {len(problems)} of {len(directories)} tasks are broken\n{lines}")
    return LoadedTasks(tasks=tuple(tasks), problems=tuple(problems))


def load_task(directory: Path, *, variables: Mapping[str, str] | None = None) -> Task:
    """Load one task. `variables` are what `${NAME}` in an `env` table may read of the host: by default nothing.

    Raises `TaskError`.
    """
    name = directory.absolute().name  # a link to a directory is a task of its own name
    directory = directory.resolve()
    toml = read_toml(_regular(directory / "task.toml"))
    instruction = _instruction(directory / "instruction.md")
    test = _regular(directory / "tests" / "test.sh")
    solution = directory / "solution"
    environment = toml.environment
    known = variables or {}
    where = directory / "task.toml"
    return Task(
        id=name,
        instruction=instruction,
        root=directory,
        image=ImageSpec(
            dockerfile=_dockerfile(directory, toml),
            context=directory / "environment",
            env=_resolve(environment.env, known, f"{where}: environment.env"),
            workdir=environment.workdir,
            build_timeout_s=environment.build_timeout_sec,
        ),
        limits=Limits(cpus=environment.cpus, memory_bytes=toml.memory_bytes, disk_bytes=toml.disk_bytes),
        verifier=VerifierSpec(
            tests=test.parent,
            timeout_s=toml.verifier.timeout_sec,
            env=_resolve(toml.verifier.env, known, f"{where}: verifier.env"),
        ),
        digest=directory_digest(directory),
        solution=solution if (solution / "solve.sh").is_file() else None,
        agent_timeout_s=toml.agent.timeout_sec,
        max_turns=toml.metadata.get("max_turns"),
        family=toml.metadata.get("family", ""),
        tags=_tags(toml),
        metadata=_metadata(toml),
    )


def _instruction(path: Path) -> str:
    try:
        text = _regular(path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
    if not text:
        raise TaskError(f"{path}: empty; write what the agent shall do")
    return text


def _regular(path: Path) -> Path:
    """Links are refused where the host itself reads: a task must not make it read its own files."""
    if any(part.is_symlink() for part in (path, path.parent)):
        raise TaskError(f"{path}: reached through a symbolic link; put the file itself there")
    if not path.is_file():
        raise TaskError(f"{path}: missing")
    return path


def _dockerfile(directory: Path, toml: TaskToml) -> Path:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        compose = directory / "environment" / name
        if compose.exists() and len(services := _services(_regular(compose).read_text("utf-8"))) != 1:
            raise TaskError(
                f"{compose}: services: {', '.join(services) or 'none found'}; tasks of several services "
                "are not supported yet, only one service with a Dockerfile"
            )
    dockerfile = directory / "environment" / "Dockerfile"
    if not dockerfile.exists() and toml.environment.docker_image:
        raise TaskError(
            f"{directory / 'task.toml'}: environment.docker_image: a ready-made image is not supported yet; "
            f"write environment/Dockerfile with `FROM {toml.environment.docker_image}`"
        )
    return _regular(dockerfile)


_SERVICE: Final = re.compile(r"^( +)([\w.-]+):", re.MULTILINE)


def _services(compose: str) -> list[str]:
    """Names under `services:`, by indentation: enough to tell one from several without a YAML parser."""
    _, _, rest = f"\n{compose}".partition("\nservices:")
    block = re.split(r"\n(?=[^\s#])", rest, maxsplit=1)[0]
    found = _SERVICE.findall(block)
    return [name for indent, name in found if indent == found[0][0]]


_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _resolve(env: Mapping[str, str], variables: Mapping[str, str], where: str) -> dict[str, str]:
    """Replace `${NAME}` and `${NAME:-default}`. Raises `TaskError` for a name without a value."""

    def value(match: re.Match[str]) -> str:
        name: str = match[1]
        default: str | None = match[2]
        found = variables.get(name, default)
        if found is None:
            raise TaskError(f"{where}: ${{{name}}} has no value; pass it, or write ${{{name}:-default}}")
        return found

    return {key: _VARIABLE.sub(value, text) for key, text in env.items()}


def _tags(toml: TaskToml) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*toml.metadata.get("tags", []), *toml.task.keywords]))


def _metadata(toml: TaskToml) -> dict[str, Any]:
    found = dict(toml.metadata)
    if toml.task.name is not None:
        found["name"] = toml.task.name
    if toml.network_mode is not None:
        found["network_mode"] = toml.network_mode
    return found
