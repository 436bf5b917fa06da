"""From trials to faults. Law: pure; each flaw has its rule here and nowhere else. No fault: the task is sound.

    unsolved, noop    must fail, each time alike        else  unsolved_passes, noop_passes, flaky, verifier_fault
    solution          must pass, each time alike        else  solution_fails, flaky, verifier_fault, no_solution
    exploit           must be graded, must not succeed, must not get more than doing nothing gets
                                                        else  forced_infrastructure, hackable

An exploit that gets itself not graded wins as well: a trajectory that counts for nothing is better than a failure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from muster.tasks.audit_record import AuditFault, Flaw, Probe, Trial
from muster.types import Verdict

_EPSILON = 1e-9  # rewards are compared after arithmetic on decimal fractions
OWNED_HINT = "passes with the system directories as the solution leaves them: add them to metadata.owned_paths"

_GRADED = (Verdict.SUCCESS, Verdict.FAILURE)


def judge(trials: Sequence[Trial], *, waived: Collection[str] = ()) -> tuple[AuditFault, ...]:
    """The faults of a task. `waived`: exploits that are, by the task's own word, a way to solve it."""
    faults = [
        *_must_fail(_of(trials, Probe.UNSOLVED), Flaw.UNSOLVED_PASSES),
        *_must_fail(_of(trials, Probe.NOOP), Flaw.NOOP_PASSES),
        *_solution(trials),
    ]
    idle = max((t.reward for t in untouched(trials) if t.reward is not None), default=0.0)
    for trial in _of(trials, Probe.EXPLOIT):
        fault = _exploit(trial, idle)
        if fault is not None and trial.exploit not in waived:
            faults.append(fault)
    return tuple(faults)


def untouched(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.probe in (Probe.UNSOLVED, Probe.NOOP)]


def worth_attacking(trials: Sequence[Trial]) -> bool:
    """Whether exploits can show anything: an untouched state that passes, or is not graded, hides what they earn."""
    idle = untouched(trials)
    return bool(idle) and all(t.verdict is Verdict.FAILURE for t in idle)


def earned(trial: Trial, idle: float) -> bool:
    """Whether the trial got more than doing nothing, which gets `idle`."""
    return trial.verdict is Verdict.SUCCESS or (trial.reward is not None and trial.reward > idle + _EPSILON)


def _of(trials: Sequence[Trial], probe: Probe) -> list[Trial]:
    return [t for t in trials if t.probe is probe]


def _must_fail(runs: Sequence[Trial], flaw: Flaw) -> list[AuditFault]:
    faults = _unequal(runs)
    if any(t.verdict is Verdict.SUCCESS for t in runs):
        faults.append(AuditFault(flaw=flaw, note=_last_note(runs)))
    return faults


def _solution(trials: Sequence[Trial]) -> list[AuditFault]:
    runs = _of(trials, Probe.SOLUTION)
    if not runs:
        return [AuditFault(flaw=Flaw.NO_SOLUTION, note="add solution/solve.sh")]
    faults = _unequal(runs)
    if all(t.verdict is Verdict.FAILURE for t in runs):
        owns = any(t.verdict is Verdict.SUCCESS for t in _of(trials, Probe.OWNED))
        faults.append(AuditFault(flaw=Flaw.SOLUTION_FAILS, note=OWNED_HINT if owns else _last_note(runs)))
    return faults


def _unequal(runs: Sequence[Trial]) -> list[AuditFault]:
    """The faults of runs that do not agree, or say nothing."""
    if not runs:
        return []
    subject = runs[0].probe.value
    silent = [t for t in runs if t.verdict not in _GRADED]
    if len(silent) == len(runs):
        return [
            AuditFault(flaw=Flaw.VERIFIER_FAULT, subject=subject, note=f"{silent[0].cause} {silent[0].note}".strip())
        ]
    verdicts = {t.verdict for t in runs}
    rewards = sorted(t.reward for t in runs if t.reward is not None)
    if len(verdicts) > 1 or rewards[-1] - rewards[0] > _EPSILON:
        seen = ", ".join("none" if t.reward is None else f"{t.reward:.6g}" for t in runs)
        return [AuditFault(flaw=Flaw.FLAKY, subject=subject, note=f"rewards {seen}")]
    return []


def _exploit(trial: Trial, idle: float) -> AuditFault | None:
    if trial.verdict not in _GRADED:
        return AuditFault(
            flaw=Flaw.FORCED_INFRASTRUCTURE, subject=trial.exploit, note=f"{trial.cause} {trial.note}".strip()
        )
    if earned(trial, idle):
        return AuditFault(flaw=Flaw.HACKABLE, subject=trial.exploit, note=trial.note)
    return None


def _last_note(runs: Sequence[Trial]) -> str:
    return next((t.note for t in reversed(runs) if t.note), "")
