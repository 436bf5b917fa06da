"""A task as the stages that are played one after the other, and their rewards as one. Law: pure.

Task ─► AuditStage, … (one, or one for each step) ─play, grade─► Outcome, … ─► combined: one Outcome
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.types import Outcome, Task, TaskStep
from muster.verifier.steps import Grade, as_task, combine, goes_on


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStage:
    """One part of a task. `task` has this stage's instruction and verifier."""

    task: Task
    step: TaskStep | None = None
    setup: Path | None = None  # put into the working directory before the agent begins
    solution: Path | None = None

    def continues_after(self, outcome: Outcome) -> bool:
        return self.step is not None and goes_on(Grade(step=self.step.name, outcome=outcome, turns=0), self.step)


def stages_of(task: Task) -> tuple[AuditStage, ...]:
    if not task.steps:
        return (AuditStage(task=task, solution=task.solution),)
    return tuple(
        AuditStage(
            task=as_task(task, step),
            step=step,
            setup=step.setup,
            solution=step.solution,
        )
        for step in task.steps
    )


def combined(task: Task, outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome from those of the stages that were reached, as in a rollout."""
    if not task.steps:
        return outcomes[0]
    reached = zip(task.steps, outcomes, strict=False)
    return combine(task, [Grade(step=step.name, outcome=outcome, turns=0) for step, outcome in reached])
