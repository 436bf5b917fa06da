"""Messages between the trainer's process and its parent.

Law: plain picklable data between two ends of one private socket pair; no torch. Exceptions cross with their evidence.

    frame = 8 bytes of length, big-endian, then the pickle
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from muster.errors import MusterError
from muster.trainer.config import TrainerConfig
from muster.trainer.port import Exporter

LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """The first request's argument. `model` is a folder, a .gguf file or a packaged name."""

    config: TrainerConfig
    model: str
    temperature: float
    exporter: Exporter


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCall:
    """Call `method` of the trainer."""

    id: int
    method: str
    arguments: tuple[Any, ...] | TrainerSetup = ()
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReply:
    """Reply to a call: what it returned, or the error it raised."""

    id: int
    value: Any = None
    error: MusterError | None = None


def frame(message: TrainerCall | TrainerReply) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
