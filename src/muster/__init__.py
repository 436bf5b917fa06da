"""Muster: post-training for language-model agents, scheduled by the time to a trainable batch.

    import muster
    muster.train({"model": "/models/mine", "loop": {"steps": 20}})
    muster.train("mine.toml", player=MyPlayer)

`train`, `resume` and `evaluate` are what the command line calls. Beside them stand the ports, which users implement,
and what these speak of:

    Player            begin, instruct, play: an agent of your own (`agent.player`), with Episode, Transcript, Renderer,
                      SpanRecorder, Agent (Muster's own, to change a part of) and AgentConfig (the section `[agent]`)
    Score             a function that grades (`verifier.score`);  Verifier: what calls it
    Engine, Replica   what samples, and what takes new weights;  Trainer: what makes them
    SandboxBackend, Sandbox    where agents act

A score and a player are picked by the configuration. Adapters of the other ports are picked in `muster.app`, so a new
one is a change of Muster: CONTRIBUTING.md. The nouns (`Task`, `Trajectory`, `Outcome`, …) are all in `muster.types`.

Everything but the nouns and errors is loaded when first used: importing this package stays cheap, and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from muster import extras
from muster.errors import MusterError, UserError
from muster.types import (
    Batch,
    Cause,
    Completion,
    Evaluation,
    Graded,
    Outcome,
    Publication,
    ReadyGroup,
    Sampling,
    Segment,
    Session,
    Stage,
    Task,
    Trajectory,
    Turn,
    Ungraded,
    Verdict,
    Version,
)

if TYPE_CHECKING:
    from muster.app.run import evaluate, resume, train
    from muster.config import RunConfig
    from muster.config import load as load_config
    from muster.engine.port import Engine, Replica
    from muster.rollout.agent import Agent
    from muster.rollout.config import AgentConfig
    from muster.rollout.port import Between, Episode, MakePlayer, Player, Spent
    from muster.rollout.renderer import Renderer, Transcript
    from muster.rollout.spans import SpanRecorder
    from muster.sandbox.port import Result, Sandbox, SandboxBackend
    from muster.trainer.port import Trainer
    from muster.verifier.function import Score
    from muster.verifier.port import Verifier

__all__ = [
    "Agent",
    "AgentConfig",
    "Batch",
    "Between",
    "Cause",
    "Completion",
    "Engine",
    "Episode",
    "Evaluation",
    "Graded",
    "MakePlayer",
    "MusterError",
    "Outcome",
    "Player",
    "Publication",
    "ReadyGroup",
    "Renderer",
    "Replica",
    "Result",
    "RunConfig",
    "Sampling",
    "Sandbox",
    "SandboxBackend",
    "Score",
    "Segment",
    "Session",
    "SpanRecorder",
    "Spent",
    "Stage",
    "Task",
    "Trainer",
    "Trajectory",
    "Transcript",
    "Turn",
    "Ungraded",
    "UserError",
    "Verdict",
    "Verifier",
    "Version",
    "evaluate",
    "load_config",
    "resume",
    "train",
]

_LAZY = {
    "muster.app.run": ("evaluate", "resume", "train"),
    "muster.config": ("RunConfig",),
    "muster.engine.port": ("Engine", "Replica"),
    "muster.rollout.agent": ("Agent",),
    "muster.rollout.config": ("AgentConfig",),
    "muster.rollout.port": ("Between", "Episode", "MakePlayer", "Player", "Spent"),
    "muster.rollout.renderer": ("Renderer", "Transcript"),
    "muster.rollout.spans": ("SpanRecorder",),
    "muster.sandbox.port": ("Result", "Sandbox", "SandboxBackend"),
    "muster.trainer.port": ("Trainer",),
    "muster.verifier.function": ("Score",),
    "muster.verifier.port": ("Verifier",),
}
_HOME = {"load_config": ("muster.config", "load")} | {
    name: (module, name) for module, names in _LAZY.items() for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    module, attribute = _HOME[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ImportError(f"muster.{name}: {extras.remedy(error) or error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
