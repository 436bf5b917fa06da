"""`muster audit`: composes the audit of a directory of tasks, shows it, and writes it down.

    tasks ─► what the record holds already, unchanged ─► reused
       └───► the rest ─► Auditor (at most `slots` plays at once) ─► record, written after each task ─► table

Law: picks the adapters and prints; what is tried stands in `verifier.audit`, what it means in its `judge`. A record
holds whole audits alone, since whoever trains relies on it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from muster import clock
from muster.app.environments import environment
from muster.config import RunConfig
from muster.errors import MusterError, TaskError, UserError, leaves
from muster.sandbox.config import SandboxConfig
from muster.tasks.audit_record import AuditRecord, AuditTarget, Flaw, Probe, TaskAudit, read, write
from muster.tasks.harbor import load_directory
from muster.types import Task, Verdict
from muster.verifier.audit import verdict_files
from muster.verifier.audit.auditor import Auditor, AuditPlan, waived_by
from muster.verifier.audit.battery import chosen, digest
from muster.verifier.audit.play import ScriptPlayer
from muster.verifier.config import VerifierConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of an audit. Raises `UserError` for what does not go together."""

    only: tuple[str, ...] = ()  # task ids; empty: all
    exploits: tuple[str, ...] = ()  # empty: the whole battery
    repeats: int = 3
    record: Path | None = None

    def __post_init__(self) -> None:
        if self.exploits and self.record:
            raise UserError("--exploit tries a part of the battery, and a record holds whole audits: leave --json out")

    def plan(self) -> AuditPlan:
        own = [name for name in self.exploits if name != verdict_files.NAME]
        exploits = chosen(own) if own or not self.exploits else ()
        version = f"{distribution_version('muster-rl')} {self.repeats}"
        return AuditPlan(
            exploits=exploits,
            verdict_files=not self.exploits or verdict_files.NAME in self.exploits,
            battery=digest(exploits, version=version),
            repeats=self.repeats,
        )


def audit(
    directory: Path, options: AuditOptions, *, config: RunConfig, console: Console, plan: AuditPlan | None = None
) -> bool:
    """Audit the tasks of `directory`; True when every one is sound. `config` says how sandboxes and verifiers work.

    Raises `TaskError` for tasks that cannot be loaded, or that are not there.
    """
    tasks = _selected(directory, options.only, config.tasks.variables)
    plan = plan or options.plan()
    done = _known(options.record)
    reused = [t for t in tasks if _still_true(done.get(t.id), t, plan)]
    if reused:
        console.print(f"{len(reused)} of {len(tasks)} audits are those of {options.record}: nothing changed since")

    def keep(found: TaskAudit) -> None:
        done[found.task] = found
        if options.record is not None:
            write(options.record, _record(done.values()))

    todo = [t for t in tasks if t not in reused]
    try:
        clock.run(_audit_all(todo, plan, _sized(config.sandbox), config.verifier, console, keep))
    except KeyboardInterrupt:
        kept = f"; {options.record} holds what was finished" if options.record and options.record.exists() else ""
        console.print(f"stopped: sandboxes are closed{kept}", markup=False)
        raise
    audits = [done[t.id] for t in tasks]
    show(audits, console)
    if options.record is not None:
        console.print(f"record: {options.record}", markup=False)
    return all(a.sound for a in audits)


def show(audits: Sequence[TaskAudit], console: Console) -> None:
    """The table, one line of sums, and the targets."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True, min_width=max((len(found.task) for found in audits), default=0))
    for name in ("verdict", "solution", "doing nothing", "exploits", "earned", "why"):
        table.add_column(name)
    for found in audits:
        table.add_row(
            found.task,
            Text("sound", "green") if found.sound else Text("unsound", "bold red"),
            _rewards(found, Probe.SOLUTION),
            _rewards(found, Probe.NOOP),
            str(found.pairs),
            str(_earned(found)),
            Text("\n".join([*map(str, found.faults), *(f"waived: {name}" for name in found.waived)])),
        )
    console.print(table)
    sound = sum(a.sound for a in audits)
    console.print(
        f"{len(audits)} tasks: {sound} sound, {len(audits) - sound} unsound; "
        f"{sum(a.pairs for a in audits)} (task, exploit) pairs tried, {sum(map(_earned, audits))} earned"
    )
    for target in _targets(audits):
        console.print(str(target), markup=False, highlight=False)


# --- running ----------------------------------------------------------------------------------------------


async def _audit_all(
    tasks: Sequence[Task],
    plan: AuditPlan,
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    console: Console,
    keep: Callable[[TaskAudit], None],
) -> None:
    if not tasks:
        return
    # plays wait at the player's gate; a few tasks ahead of it keep it busy
    ahead = asyncio.Semaphore(sandbox.slots)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with environment(sandbox, verifier, label="audit") as here:
        auditor = Auditor(ScriptPlayer(here.pool, here.verifier, jobs=sandbox.slots), plan)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("exploits", total=len(tasks) * len(plan.exploits))

            async def one(task: Task) -> None:
                async with ahead:
                    found = await auditor.audit(task, on_exploit=lambda: progress.advance(bar))
                keep(found)
                if not console.is_terminal:  # a log of its own, where no bar can be drawn
                    console.print(f"{task.id}: {'sound' if found.sound else 'unsound'}", markup=False)

            try:
                async with asyncio.TaskGroup() as group:
                    for task in tasks:
                        group.create_task(one(task))
            except* MusterError as several:
                raise next(leaves(several)) from None  # one of our own messages is what a user needs to see


def _sized(sandbox: SandboxConfig) -> SandboxConfig:
    """Verifications are short and hostile; more at once than the machine has cores only make each other late."""
    if "slots" in sandbox.model_fields_set:
        return sandbox
    cores = len(os.sched_getaffinity(0))
    return sandbox.model_copy(update={"slots": cores, "verifier_slots": cores, "warm": 0})


def _selected(directory: Path, only: Sequence[str], variables: Mapping[str, str]) -> list[Task]:
    tasks = load_directory(directory, strict=True, variables=variables).tasks
    unknown = sorted(set(only) - {t.id for t in tasks})
    if unknown:
        raise TaskError(f"{directory}: no task {unknown[0]!r} there; see `muster tasks list {directory}`")
    selected = [t for t in tasks if not only or t.id in only]
    for task in selected:
        waived_by(task)  # a mistake in it is said before anything is tried
    return selected


# --- the record -------------------------------------------------------------------------------------------


def _known(path: Path | None) -> dict[str, TaskAudit]:
    if path is None or not path.exists():
        return {}
    return {found.task: found for found in read(path).tasks}


def _still_true(found: TaskAudit | None, task: Task, plan: AuditPlan) -> bool:
    if found is None or (found.digest, found.battery) != (task.digest, plan.battery):
        return False
    # what may have been this machine's doing is tried again
    return not {fault.flaw for fault in found.faults} & {
        Flaw.IMAGE_FAILED,
        Flaw.VERIFIER_FAULT,
        Flaw.FORCED_INFRASTRUCTURE,
    }


def _record(audits: Iterable[TaskAudit]) -> AuditRecord:
    in_order = sorted(audits, key=lambda found: found.task)
    return AuditRecord(tasks=tuple(in_order), targets=_targets(in_order))


def _targets(audits: Sequence[TaskAudit]) -> tuple[AuditTarget, ...]:
    share = sum(a.sound for a in audits) / len(audits) if audits else 0.0
    earned = sum(map(_earned, audits))
    return (
        AuditTarget(name="audit_sound", value=share, operator=">=", threshold=1.0, met=share >= 1.0),
        AuditTarget(name="audit_exploits_earned", value=earned, operator="<=", threshold=0.0, met=earned == 0),
    )


def _earned(found: TaskAudit) -> int:
    return len({f.subject for f in found.faults if f.flaw in (Flaw.HACKABLE, Flaw.FORCED_INFRASTRUCTURE)})


def _rewards(found: TaskAudit, probe: Probe) -> str:
    rewards = [_reward(t.reward, t.verdict) for t in found.trials if t.probe is probe]
    return " ".join(dict.fromkeys(rewards)) or "-"


def _reward(reward: float | None, verdict: Verdict) -> str:
    return verdict.value if reward is None else f"{reward:.4g}"
