"""Configuration of tasks: which there are, and how the next one is chosen."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class SuiteConfig(BaseModel):
    """Options of the suites: the tasks to train and to evaluate on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Path | None = Field(default=None, description="directory of Harbor tasks; none: generate the starter suite")
    heldout: Path | None = Field(
        default=None, description="directory of held-out tasks; none: generate, or no evaluation"
    )
    per_family: int = Field(default=24, ge=1, description="starter suite: training instances of each family")
    heldout_per_family: int = Field(default=4, ge=1, description="starter suite: held-out instances of each family")
    families: tuple[str, ...] | None = Field(default=None, description="starter suite: families to generate; none: all")
    audit: Path | None = Field(
        default=None,
        description="record of `muster audit --json`, by which unsound tasks do not train; "
        "none: audit.json in the directory of the training tasks, if it is there",
    )
    variables: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="what ${NAME} in a task's env tables stands for; nothing of this machine's environment is read",
    )


class CurriculumConfig(BaseModel):
    """Options of choosing tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exploration_floor: float = Field(
        default=0.05, gt=0, le=1, description="Weight of a task that teaches nothing, over one that teaches most"
    )
    decay: float = Field(
        default=0.5, ge=0, lt=1, description="What one more group leaves of the earlier ones in an estimate"
    )
    prior_attempts: float = Field(
        default=1.0, gt=0, description="Attempts at success rate 0.5 that every family is thought to have had"
    )
    family_attempts: float = Field(
        default=4.0, gt=0, description="Attempts that the family's estimate counts for in that of its tasks"
    )
    quarantine_after: int = Field(
        default=3, ge=1, description="Faults of a task's image or verifier, without a grade between, that quarantine it"
    )
    window_groups: int = Field(default=64, ge=1, description="Recorded groups that `informative_share` looks at")
    fresh_below: float = Field(
        default=0.1, ge=0, le=1, description="Informative share under which fresh tasks are asked for"
    )
