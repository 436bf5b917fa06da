"""The steps of a task of several.

    steps/<name>/  instruction.md  tests/  [solution/solve.sh]  [workdir/ with setup.sh]  ─► TaskStep

Law: what goes into an agent's sandbox between steps holds no links, because the host reads it then.
"""

from __future__ import annotations

from pathlib import Path

from muster.errors import TaskError
from muster.tasks import verification
from muster.tasks.source import TaskDirectory
from muster.tasks.task_toml import StepTable
from muster.types import TaskStep


def steps(source: TaskDirectory) -> tuple[TaskStep, ...]:
    return tuple(_step(source, index, table) for index, table in enumerate(source.toml.steps))


def instruction(source: TaskDirectory, relative: str) -> str:
    text = source.text(relative).strip()
    if not text:
        raise TaskError(f"{source.root / relative}: empty; write what the agent shall do")
    return text


def solution(root: Path) -> Path | None:
    """The directory of a reference solution, if it is one."""
    return root / "solution" if (root / "solution" / "solve.sh").is_file() else None


def _step(source: TaskDirectory, index: int, table: StepTable) -> TaskStep:
    folder = f"steps/{table.name}"
    return TaskStep(
        name=table.name,
        instruction=instruction(source, f"{folder}/instruction.md"),
        verifier=verification.of_step(source, index, table),
        agent_timeout_s=table.agent.timeout_sec,
        min_reward=table.min_reward.get("reward"),
        min_criteria={name: least for name, least in table.min_reward.items() if name != "reward"},
        health=table.healthcheck.health() if table.healthcheck else None,
        setup=_setup(source, f"{folder}/workdir"),
        solution=solution(source.root / folder),
    )


def _setup(source: TaskDirectory, relative: str) -> Path | None:
    root = source.root / relative
    if not source.has(relative):
        return None
    for path in (root, *sorted(root.rglob("*"))):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise TaskError(f"{path}: neither a plain file nor a directory; let setup.sh make it instead")
    return root
