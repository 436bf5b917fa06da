from __future__ import annotations

import pytest

from muster.errors import EngineError, ImageError, SandboxStartError, VerifierError, boundary
from muster.types import Cause, Verdict


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ImageError("no layer"), Cause.IMAGE_FAILED),
        (SandboxStartError("no answer"), Cause.SANDBOX_START_FAILED),
        (EngineError("refused"), Cause.ENGINE_FAILED),
        (VerifierError("no fork"), Cause.VERIFIER_FAULT),
        (ConnectionResetError("peer"), Cause.TRANSPORT),
        (TimeoutError(), Cause.TRANSPORT),
    ],
)
def test_a_boundary_error_is_infrastructure_with_its_own_cause(error: Exception, cause: Cause) -> None:
    outcome = boundary(error)
    assert outcome.verdict is Verdict.INFRA
    assert outcome.cause is cause


def test_what_no_rule_covers_is_unknown_and_never_trainable() -> None:
    assert boundary(KeyError("x")).verdict is Verdict.UNKNOWN


def test_evidence_travels_into_the_outcome() -> None:
    outcome = boundary(EngineError("died", {"exit": -9}))
    assert outcome.evidence == {"error": "died", "exit": -9}
