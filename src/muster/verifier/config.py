"""Configuration of grading."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class VerifierConfig(BaseModel):
    """Options of grading final states."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: str | None = Field(
        default=None,
        description="a Python function, module:name, that scores instead of tests/test.sh: "
        "score(trajectory, sandbox) -> float | None",
    )
    score_timeout_s: float = Field(default=60.0, gt=0, description="one call of the Python function")
    success_reward: float = Field(default=1.0, description="a reward of at least this is a success")
    control_ttl_s: float = Field(default=600.0, ge=0, description="how long a healthy control run is believed")
    reward_cap_bytes: int = Field(default=65_536, ge=16, description="a larger reward file is refused")
    evidence_chars: int = Field(default=1000, ge=0, description="of the script's output kept with the outcome")
    scratch_dir: Path | None = Field(
        default=None, description="where the directories mounted at /logs/verifier are made; None: the system's"
    )
