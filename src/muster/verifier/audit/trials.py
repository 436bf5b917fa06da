"""From an outcome to a trial: what the record keeps of it, and the one line that tells an author why. Law: pure."""

from __future__ import annotations

from muster.tasks.audit_record import Probe, Trial
from muster.types import Cause, Evidence, Graded, Outcome
from muster.verifier.audit.battery import Exploit

NOTE_CHARS = 200


def trial_of(probe: Probe, outcome: Outcome, *, exploit: Exploit | None = None, said: str = "") -> Trial:
    """`said`: the last output of the script that was played; it is shown where the verifier said nothing."""
    return Trial(
        probe=probe,
        verdict=outcome.verdict,
        reward=outcome.reward if isinstance(outcome, Graded) else None,
        cause=outcome.cause,
        exploit=exploit.name if exploit else "",
        kind=exploit.kind if exploit else "",
        note=brief(_reason(outcome.cause, outcome.evidence) or said),
    )


def brief(text: str) -> str:
    """One line of at most `NOTE_CHARS`, the end of it kept: there the reason usually stands."""
    line = " ".join(text.split())
    return line if len(line) <= NOTE_CHARS else f"…{line[1 - NOTE_CHARS :]}"


def _reason(cause: Cause, evidence: Evidence) -> str:
    if cause is Cause.TAMPERED:
        return f"tampered with {', '.join(evidence.get('tampered', ()))}"
    if "final" in evidence:  # what several runs said
        runs = [*evidence["final"], {"problem": "control", **evidence.get("control", {})}]
        return "; ".join(str(run.get("problem") or run.get("reward")) for run in runs)
    return str(evidence.get("output") or evidence.get("error") or "")
