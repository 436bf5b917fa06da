"""Muster: post-training for language-model agents, scheduled by the time to a trainable batch.

    import muster
    muster.train(muster.RunConfig(loop={"steps": 20}))

The nouns are in `muster.types`. `train`, `evaluate`, `RunConfig` and `load_config` are loaded when first used, so
that importing this package stays cheap and never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from muster.types import (
    Batch,
    Cause,
    Completion,
    Evaluation,
    Graded,
    Outcome,
    Publication,
    ReadyGroup,
    Segment,
    Task,
    Trajectory,
    Ungraded,
    Verdict,
    Version,
)

if TYPE_CHECKING:
    from muster.app.run import evaluate, train
    from muster.config import RunConfig
    from muster.config import load as load_config

__all__ = [
    "Batch",
    "Cause",
    "Completion",
    "Evaluation",
    "Graded",
    "Outcome",
    "Publication",
    "ReadyGroup",
    "RunConfig",
    "Segment",
    "Task",
    "Trajectory",
    "Ungraded",
    "Verdict",
    "Version",
    "evaluate",
    "load_config",
    "train",
]

_LAZY = {
    "RunConfig": ("muster.config", "RunConfig"),
    "load_config": ("muster.config", "load"),
    "train": ("muster.app.run", "train"),
    "evaluate": ("muster.app.run", "evaluate"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
