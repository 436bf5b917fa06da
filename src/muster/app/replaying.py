"""Replay of a trajectory, `muster replay`: finds it and its task in a run, plays it again, says what is the same.

    run's journal ─► trajectory, configuration ─► task ─► sandboxes, verifier ─► Replayer ─► terminal, JSON

Law: reads the run, changes nothing in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from muster import clock
from muster.app.environments import environment
from muster.config import RunConfig, validate
from muster.errors import UserError
from muster.journal import FILE_NAME, Journal
from muster.observe.sections import evidence
from muster.rollout.replay import Replay, Replayer
from muster.rollout.sameness import Sameness
from muster.tasks.suite import load_suites
from muster.types import Graded, Outcome, Task, Trajectory
from muster_suites.write import generate

SHOWN_LINES = 12  # of an observation that differs


def replay(trajectory_id: str, run: Path | None, *, console: Console, json_file: Path | None = None) -> bool:
    """Replay one trajectory of a run (default: the newest below runs/). True if all is as it was recorded.

    Raises `UserError` where there is no such run, trajectory or task any more.
    """
    run = run or _newest(trajectory_id)
    with Journal.open(run / FILE_NAME) as journal:
        meta = journal.meta()
        trajectory = journal.trajectory(trajectory_id)
    config = validate(meta["config"], source=str(run / FILE_NAME))
    suites = load_suites(config.tasks, run / "tasks", seed=config.seed, generate=generate)
    task = next((t for t in (*suites.train, *suites.heldout) if t.id == trajectory.task_id), None)
    if task is None:
        raise UserError(f"{run}: task {trajectory.task_id} is in its suites no more; a replay needs its directory")
    if suites.digest != meta["tasks_digest"]:
        console.print("[yellow]the task suites changed since the run; the replay is of what they are now[/]")
    console.print(f"{escape(trajectory.id)}: task {escape(task.id)}, recorded {_words(trajectory.outcome)}")
    for line in evidence.lines(trajectory.outcome.evidence):
        console.print(f"  {escape(line)}")
    found = clock.run(_replay(config, trajectory, task))
    _show(found, console)
    if json_file:
        json_file.write_text(json.dumps(_json(found), indent=2, default=str), encoding="utf-8")
    return found.faithful


async def _replay(config: RunConfig, trajectory: Trajectory, task: Task) -> Replay:
    async with environment(config.sandbox, config.verifier, label=f"replay-{trajectory.id}") as here:
        replayer = Replayer(pool=here.pool, verifier=here.verifier, config=config.agent)
        return await replayer.replay(trajectory, task)


def _newest(trajectory_id: str) -> Path:
    journals = sorted(Path("runs").glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise UserError(f"no run below runs/; say which one: muster replay {trajectory_id} --run DIRECTORY")
    return journals[-1].parent


def _show(found: Replay, console: Console) -> None:
    if not found.same_image:
        console.print("[yellow]the image is not the recorded one: the task or this machine changed since[/]")
    counts = {sameness: sum(step.sameness is sameness for step in found.steps) for sameness in Sameness}
    console.print(f"{len(found.steps)} commands: " + ", ".join(f"{n} {sameness}" for sameness, n in counts.items()))
    step = found.divergence
    if step is not None:
        console.print(f"[red]first divergence[/] at turn {step.turn}: {escape(step.command)}")
        for title, text in (("recorded", step.recorded), ("again", step.again)):
            console.print(f"  {title}:")
            for line in _head(text):
                console.print(f"    {escape(line)}", soft_wrap=True)
    console.print(f"now {_words(found.outcome)}: {found.reproduction}")
    for line in evidence.lines(found.outcome.evidence):
        console.print(f"  {escape(line)}")


def _head(text: str | None) -> list[str]:
    if text is None:
        return ["(the sandbox was lost)"]
    lines = text.splitlines()
    more = [f"[... {len(lines) - SHOWN_LINES} more lines ...]"] if len(lines) > SHOWN_LINES else []
    return lines[:SHOWN_LINES] + more


def _words(outcome: Outcome) -> str:
    reward = f", reward {outcome.reward:g}" if isinstance(outcome, Graded) else ""
    return f"{outcome.verdict} ({str(outcome.cause).replace('_', ' ')}{reward})"


def _json(found: Replay) -> dict[str, Any]:
    def plain(outcome: Outcome) -> dict[str, Any]:
        reward = outcome.reward if isinstance(outcome, Graded) else None
        return {"verdict": outcome.verdict, "cause": outcome.cause, "reward": reward, "evidence": outcome.evidence}

    return {
        "trajectory": found.trajectory.id,
        "task": found.trajectory.task_id,
        "same_image": found.same_image,
        "recorded": plain(found.trajectory.outcome),
        "again": plain(found.outcome),
        "reproduction": found.reproduction,
        "faithful": found.faithful,
        "steps": [
            {
                "turn": step.turn,
                "command": step.command,
                "sameness": step.sameness,
                "recorded": step.recorded,
                "again": step.again,
            }
            for step in found.steps
        ],
    }
