"""Errors, named by the boundary that was crossed, and their one classification.

    MusterError
    ├── UserError(ValueError)        what a user wrote: the message names the file, the key and the fix
    │   ├── ConfigError
    │   ├── TaskError
    │   └── ModelError
    ├── BoundaryError                what the world did; becomes an Outcome, never a crash
    │   ├── ImageError
    │   ├── SandboxError
    │   │   ├── SandboxStartError
    │   │   └── SandboxLost          carries the evidence of who did it
    │   ├── EngineError
    │   ├── PlayerError              of the user's own agent
    │   ├── VerifierError
    │   ├── TrainerError             not attributable to a trajectory: stops the run with its cause
    │   └── PublicationError
    └── JournalError                 the record cannot be trusted: stops the run

A broken invariant is an `assert`; nothing catches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from muster.types import Cause, Completion, Ungraded, Verdict


class MusterError(Exception):
    """Base of all errors that Muster raises on purpose."""


class UserError(MusterError, ValueError):
    """Something a user wrote is wrong. The command line prints the message alone and exits with 2."""


class ConfigError(UserError):
    """The configuration: names the key, the value and the nearest valid name."""


class TaskError(UserError):
    """A task directory: names the file and the key."""


class ModelError(UserError):
    """A model path or checkpoint."""


class BoundaryError(MusterError):
    """The world failed us at a boundary. `evidence` travels into the outcome."""

    cause: Cause = Cause.TRANSPORT

    def __init__(self, message: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.evidence: dict[str, Any] = dict(evidence or {})


class ImageError(BoundaryError):
    cause = Cause.IMAGE_FAILED


class SandboxError(BoundaryError):
    cause = Cause.SANDBOX_LOST


class SandboxStartError(SandboxError):
    cause = Cause.SANDBOX_START_FAILED


class SandboxLost(SandboxError):
    """The sandbox is gone. `by_agent` is True only when its own counters or exit show the model's doing."""

    def __init__(self, message: str, *, by_agent: bool, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, evidence)
        self.by_agent = by_agent


class EngineError(BoundaryError):
    """Failure of an engine. `kept`: what a request had sampled before it broke; the reply can go on from there."""

    cause = Cause.ENGINE_FAILED

    def __init__(
        self, message: str, evidence: Mapping[str, Any] | None = None, *, kept: Completion | None = None
    ) -> None:
        super().__init__(message, evidence)
        self.kept = kept


class PlayerError(BoundaryError):
    """The user's own agent raised what is neither the engine's nor the sandbox's, or broke its port's promises."""

    cause = Cause.PLAYER_FAILED


class VerifierError(BoundaryError):
    """The verification machinery failed outside the sandboxed test script."""

    cause = Cause.VERIFIER_FAULT


class TrainerError(BoundaryError):
    pass


class PublicationError(BoundaryError):
    pass


class JournalError(MusterError):
    pass


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside groups, however deep, in their order; of any other error, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


def boundary(error: BaseException) -> Ungraded:
    """Classify an exception that ended a trajectory. The single place that does.

    A boundary error is INFRA with its own cause, and so is a task whose image cannot be made. Any other ordinary
    error of the operating system is INFRA by transport; what no rule covers is UNKNOWN, and never trainable.
    """
    if isinstance(error, BoundaryError):
        return Ungraded(verdict=Verdict.INFRA, cause=error.cause, evidence={"error": str(error), **error.evidence})
    if isinstance(error, TaskError):
        return Ungraded(verdict=Verdict.INFRA, cause=Cause.IMAGE_FAILED, evidence={"error": str(error)})
    if isinstance(error, OSError | TimeoutError):
        return Ungraded(verdict=Verdict.INFRA, cause=Cause.TRANSPORT, evidence={"error": repr(error)})
    return Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_MISSING, evidence={"error": repr(error)})
