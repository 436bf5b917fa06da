"""Harbor task directories in, `Task`s out.

Law: this file reads and never runs anything a task author wrote. What is wrong with a directory is a
`TaskError` that names the file, the key and the fix; a broken task never hides the next one.

    <task>/  task.toml  instruction.md  environment/  tests/  [solution/]  [steps/<name>/]
       └─ read_toml ─► refusals ─► environment, verification, steps ─► Task (id: name of the directory)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import TaskError
from muster.tasks import environment, refusals, verification
from muster.tasks.content import directory_digest
from muster.tasks.network import egress
from muster.tasks.source import TaskDirectory, regular
from muster.tasks.steps import instruction, solution, steps
from muster.tasks.task_toml import TaskToml, read_toml
from muster.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTasks:
    """Tasks loaded from a directory: the good ones, sorted by name, and one problem per broken one."""

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

    Example: `task = load_task(Path("suite/sort-lines"), variables={"TOKEN": "…"})`
    """
    name = directory.absolute().name  # a link to a directory is a task of its own name
    directory = directory.resolve()
    toml = read_toml(regular(directory, "task.toml"))
    source = TaskDirectory(root=directory, toml=toml, variables=variables or {})
    for key, problem in refusals.problems(toml):
        raise source.fault(key, problem)
    several = steps(source)
    network = egress(toml.agent, toml.environment)
    return Task(
        id=name,
        instruction=several[0].instruction if several else instruction(source, "instruction.md"),
        root=directory,
        image=environment.image(source, "environment", toml.environment, "environment", user=toml.agent.user),
        limits=environment.limits(toml.environment, network),
        verifier=several[0].verifier if several else verification.of_task(source),
        digest=directory_digest(directory),
        solution=solution(directory),
        solution_env=source.resolve(toml.solution.env, "solution.env"),
        agent_timeout_s=toml.agent.timeout_sec,
        max_turns=toml.metadata.get("max_turns"),
        family=toml.metadata.get("family", ""),
        tags=tuple(dict.fromkeys([*toml.metadata.get("tags", []), *toml.task.keywords])),
        metadata=_metadata(toml),
        steps=several,
        step_reward=toml.multi_step_reward_strategy or "mean",
    )


def _metadata(toml: TaskToml) -> dict[str, Any]:
    """The task's own, and what Muster accepts without having a use for it."""
    noted = {
        "name": toml.task.name,
        "network_mode": toml.environment.asked_mode,
        "skills_dir": toml.environment.skills_dir,
    }
    return {**toml.metadata, **{key: value for key, value in noted.items() if value is not None}}
