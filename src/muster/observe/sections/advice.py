"""Alarms, and the one change that would pay most.

Law: pure. Advice counts only seconds in which the trainer waited: a queue in front of a busy trainer costs nothing.
Below `WORTH` of the wall time, nothing pays.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.observe.devices import idle_while
from muster.observe.outcomes import Groups
from muster.observe.palette import BOUND_NAMES, name
from muster.observe.report import Report
from muster.observe.words import percent, plural, seconds
from muster.types import DeviceState, Stage, Verdict

WORTH = 0.05  # share of the wall time below which a change is not worth its risk
INFRA_SHARE = 0.05
UNKNOWN_SHARE = 0.02
NO_GRADIENT_SHARE = 0.5
LEAST_GROUPS = 8  # complete ones, below which a share of them says little
K3_LIMIT = 1e-2
ESS_LIMIT = 0.9

REMEDIES = {
    Stage.ADMISSION: "allow more trajectories at once (schedule.slots), or admit ahead (schedule.max_lag)",
    Stage.SANDBOX_QUEUE: "give the pool more slots (sandbox.slots)",
    Stage.SANDBOX_START: "keep more sandboxes warm (sandbox.warm), or make the image lighter",
    Stage.ENGINE_QUEUE: "let the engine run more streams (engine.max_streams), or add a replica",
    Stage.RECOMPUTE: "give the prefix cache more room (engine.kv_capacity_tokens), or admit fewer trajectories",
    Stage.VERIFIER_QUEUE: "run more verifiers at once (sandbox.verifier_slots)",
    Stage.VERIFY: "make the slowest verifiers faster, or run more of them at once (sandbox.verifier_slots)",
    Stage.INFRA_RETRY: "repair what loses trajectories: question 4 lists the causes",
    Stage.PUBLICATION_PAUSE: "shorten the pause: hold requests instead of finishing them, stage before pausing",
    Stage.REFILL: "sample more informative tasks (curriculum), or larger groups, so that fewer lack gradient; "
    "reuse rare successes (schedule.reuse) where the tasks are hard",
    Stage.ASSEMBLY: "look at the control plane: this time is our own bookkeeping, and should be near 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice. `saves_s` is an upper bound: the whole of what the change could remove. None: nothing pays."""

    sentence: str
    saves_s: float | None = None


def advise(report: Report) -> Advice:
    """One recommendation, for the largest avoidable share of the wall time."""
    if not report.batches or report.wall_s <= 0:
        return Advice(sentence="Too early to advise: no batch has become ready yet.")
    felt = report.felt
    candidates = [(felt.get(stage, 0.0), f"{_capital(name(stage))}: {remedy}") for stage, remedy in REMEDIES.items()]
    candidates.append(_overlap(report))
    saves_s, change = max(candidates)
    share = saves_s / report.wall_s
    if share < WORTH:
        held = _holding(report)
        return Advice(
            sentence=f"No single change pays: the largest avoidable share is {percent(share)} of the wall time"
            + (f". {held}" if held else ".")
        )
    return Advice(
        sentence=f"{change}. It would save at most {seconds(saves_s)}, {percent(share)} of the wall time.",
        saves_s=saves_s,
    )


def alarms(report: Report) -> tuple[str, ...]:
    """Alarms that a reader must know before believing the figures; empty when all is well."""
    found: list[str] = []
    train, groups = report.train, report.groups
    infra, unknown = train.share(Verdict.INFRA), train.share(Verdict.UNKNOWN)
    if infra > INFRA_SHARE:
        found.append(f"Infrastructure failed {percent(infra)} of the trajectories (alarm at {percent(INFRA_SHARE)}).")
    if unknown > UNKNOWN_SHARE:
        found.append(f"{percent(unknown)} of the trajectories ended unknown (alarm at {percent(UNKNOWN_SHARE)}).")
    if groups.complete >= LEAST_GROUPS and groups.no_gradient_share >= NO_GRADIENT_SHARE:
        found.append(_no_gradient(groups))
    found += _divergence_alarms(report)
    unequal = [p for p in report.publications if not p.digest_equal]
    if unequal:
        what = plural(len(unequal), "publication")
        found.append(f"{what} left an engine with other weights than were published (digest mismatch).")
    return (*found, *_accounting_alarms(report))


def _no_gradient(groups: Groups) -> str:
    """Half of the work or more taught nothing; what helps depends on why the rewards were equal."""
    unsolved, solved = groups.unsolved, groups.without_gradient - groups.unsolved
    if unsolved >= solved:
        why = f"in {unsolved} of these {groups.without_gradient} no member succeeded"
        remedy = "take easier tasks, larger groups (schedule.group_size), or reuse successes (schedule.reuse.enabled)"
    else:
        why = f"in {solved} of these {groups.without_gradient} members succeeded"
        remedy = "take harder tasks"
    return (
        f"{percent(groups.no_gradient_share)} of {plural(groups.complete, 'complete group')} had no gradient, because "
        f"all members had the same reward (alarm at {percent(NO_GRADIENT_SHARE)}); {why}: {remedy}."
    )


def _divergence_alarms(report: Report) -> list[str]:
    """k3 of fresh tokens where the trainer tells them apart: there, only numerics can raise it."""
    found: list[str] = []
    k3 = {f.step: f.k3 if f.fresh_k3 is None else f.fresh_k3 for f in report.freshness}
    high = {step: value for step, value in k3.items() if value is not None and value > K3_LIMIT}
    low = {f.step: f.ess for f in report.freshness if f.ess is not None and f.ess < ESS_LIMIT}
    if high:
        worst = max(high, key=lambda step: high[step])
        where = f"in {plural(len(high), 'batch')}, worst {high[worst]:.2g} at step {worst}"
        found.append(f"Engine and trainer disagree: k3 above {K3_LIMIT:g} {where}.")
    if low:
        worst = min(low, key=lambda step: low[step])
        where = f"in {plural(len(low), 'batch')}, worst {low[worst]:.2f} at step {worst}"
        found.append(f"The batch is far from the policy: ESS below {ESS_LIMIT:g} {where}.")
    return found


def _accounting_alarms(report: Report) -> list[str]:
    account = report.accounting
    bugs = {
        "graded trajectories are lost": account.lost,
        "trajectories were trained twice": account.trained_twice,
        "trajectories ended twice for one launch": account.launched_twice,
        "trajectories have no launch": account.never_launched,
    }
    found = [f"{len(ids)} {what}, e.g. {ids[0]}: this is a bug." for what, ids in bugs.items() if ids]
    for counts in (report.train, report.evaluate):
        if counts.difference:
            found.append(f"{counts.difference:+d} {counts.purpose} launches are unaccounted for: this is a bug.")
    return found


def _overlap(report: Report) -> tuple[float, str]:
    """Gain of an asynchronous run: it could hide engines without work while the trainer trains."""
    idle_s = idle_while(report.devices, frozenset({DeviceState.TRAIN}))
    synchronous = all(f.lag_max <= 0 for f in report.freshness)
    saves_s = min(idle_s, report.trainer_wait_s) if synchronous else 0.0
    return saves_s, "Engines wait while the trainer trains: collect the next batch meanwhile (schedule.max_lag = 1)"


def _holding(report: Report) -> str:
    """Sentence on what holds the batches, where bounds are known."""
    active = [max(b, key=lambda n: b[n]) for b in report.bounds.values() if b]
    if not active:
        return ""
    most = max(sorted(set(active)), key=active.count)
    return f"Batches are held by the {BOUND_NAMES.get(most, most)}; nothing else would make them faster."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
