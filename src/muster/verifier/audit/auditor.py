"""The audit of one task: what is tried, in which order, and what is tried again.

    prepare ─► unsolved, noop, solution (graded × repeats) ─► worth attacking? ─► every exploit ─► judge ─► TaskAudit
                                                                             └─► verdict files

Law: acts; what it means is for `judge` to say. An exploit that was not graded is played once more, with all the time
that the task gives, before it counts as having forced that: this machine may have failed by itself.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from muster.errors import ImageError, SandboxError, TaskError
from muster.sandbox.port import Mount, Snapshot
from muster.tasks.audit_record import AuditFault, Flaw, Probe, TaskAudit, Trial
from muster.types import Graded, Task, Verdict
from muster.verifier.audit import verdict_files
from muster.verifier.audit.battery import Exploit, battery
from muster.verifier.audit.judge import earned, judge, untouched, worth_attacking
from muster.verifier.audit.play import Played, Script, ScriptPlayer
from muster.verifier.audit.stages import AuditStage, stages_of
from muster.verifier.audit.trials import brief, trial_of
from muster.verifier.integrity import SYSTEM

_LOOK = (
    "pwd; ls -la; find . -xdev -type f | head -n 200 | xargs -d '\\n' cat | head -c 100000; env; git log; ps; history"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """Plan of an audit: what to try, and for how long. A hostile state may make a verifier hang, so it gets less time
    than honest ones: `deadline_factor` times what the slowest honest one took, and `deadline_floor_s` at least."""

    exploits: tuple[Exploit, ...] = field(default_factory=battery)
    verdict_files: bool = True
    battery: str = ""  # digest of exploits and code, for the record
    repeats: int = 3
    look_timeout_s: float = 10.0
    exploit_timeout_s: float = 10.0
    solution_timeout_s: float = 600.0  # where the task gives its agent no time of its own
    deadline_factor: float = 10.0
    deadline_floor_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A task under attack. `idle` is the reward of doing nothing; `solved` is how its solution went."""

    task: Task
    pristine: Snapshot
    solved: Played | None
    idle: float
    deadline_s: float | None


class Auditor:
    """Auditor of tasks: plays probes and exploits, and judges what they won.

    Example: `audit = await Auditor(ScriptPlayer(pool, verifier, jobs=4), AuditPlan()).audit(task)`
    """

    def __init__(self, player: ScriptPlayer, plan: AuditPlan) -> None:
        self._player = player
        self._plan = plan

    async def audit(self, task: Task, *, on_exploit: Callable[[], None] = lambda: None) -> TaskAudit:
        """`on_exploit` is called after each exploit of the battery. Raises `TaskError` for unreadable metadata."""
        waived = waived_by(task)
        try:
            pristine = await self._player.prepare(task)
        except (ImageError, SandboxError, TaskError) as error:
            fault = AuditFault(flaw=Flaw.IMAGE_FAILED, note=brief(str(error)))
            return self._record(task, (fault,), (), ())
        trials, solved = await self._honest(task, pristine)
        if worth_attacking(trials):
            target = _Target(
                task=task,
                pristine=pristine,
                solved=solved,
                idle=max(t.reward or 0.0 for t in untouched(trials)),
                deadline_s=self._deadline_s(solved),
            )
            trials += await self._hostile(target, on_exploit)
        faults = judge(trials, waived=waived)
        ways = tuple(sorted({f.subject for f in judge(trials)} & set(waived)))
        return self._record(task, faults, trials, ways)

    def _record(
        self, task: Task, faults: tuple[AuditFault, ...], trials: Sequence[Trial], waived: tuple[str, ...]
    ) -> TaskAudit:
        return TaskAudit(
            task=task.id,
            digest=task.digest,
            battery=self._plan.battery,
            repeats=self._plan.repeats,
            sound=not faults,
            faults=faults,
            waived=waived,
            trials=tuple(trials),
        )

    # --- honest states ------------------------------------------------------------------------------------

    async def _honest(self, task: Task, pristine: Snapshot) -> tuple[list[Trial], Played | None]:
        """Trials of the untouched states and of the solution, and how the solution went."""
        look = Script(command=_LOOK, timeout_s=self._plan.look_timeout_s)
        repeats = self._plan.repeats
        unsolved = await self._player.play(task, pristine, lambda _: None, repeats=repeats)
        noop = await self._player.play(task, pristine, lambda _: look, repeats=repeats)
        trials = [trial_of(Probe.UNSOLVED, o) for o in unsolved.outcomes]
        trials += [trial_of(Probe.NOOP, o) for o in noop.outcomes]
        if any(stage.solution is None for stage in stages_of(task)):
            return trials, None
        peek = _named(task, pristine)
        solved = await self._player.play(task, pristine, lambda stage: self._solve(stage, peek), repeats=repeats)
        trials += [trial_of(Probe.SOLUTION, o, said=solved.said) for o in solved.outcomes]
        if all(o.verdict is Verdict.FAILURE for o in solved.outcomes):
            # would it pass if the task owned the system directories?
            owning = await self._player.play(_owning(task), pristine, lambda stage: self._solve(stage, ()))
            trials += [trial_of(Probe.OWNED, o) for o in owning.outcomes]
        return trials, solved

    def _solve(self, stage: AuditStage, peek: tuple[str, ...]) -> Script:
        assert stage.solution is not None
        env = " ".join(f"{key}={shlex.quote(value)}" for key, value in stage.task.solution_env.items())
        return Script(
            command=f"env {env} bash /solution/solve.sh",
            timeout_s=stage.task.agent_timeout_s or self._plan.solution_timeout_s,
            mounts=(Mount(source=stage.solution.resolve(), target="/solution"),),
            peek=peek,
        )

    def _deadline_s(self, solved: Played | None) -> float | None:
        """Of a verification of a hostile state. None, the task's own, when no honest one shows how long it takes."""
        seconds = [float(o.evidence["run_s"]) for o in solved.outcomes if "run_s" in o.evidence] if solved else []
        return max(self._plan.deadline_floor_s, self._plan.deadline_factor * max(seconds)) if seconds else None

    # --- hostile states -----------------------------------------------------------------------------------

    async def _hostile(self, target: _Target, on_exploit: Callable[[], None]) -> list[Trial]:
        async def tried(exploit: Exploit) -> Trial:
            trial = await self._attack(target, exploit)
            on_exploit()
            return trial

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(tried(exploit)) for exploit in self._plan.exploits]
        trials = [task.result() for task in tasks]
        if self._plan.verdict_files:
            trials += await self._verdict_files(target)
        return trials

    async def _attack(self, target: _Target, exploit: Exploit) -> Trial:
        def script_of(stage: AuditStage) -> Script:
            command = exploit.command(instruction=stage.task.instruction, workdir=target.pristine.workdir)
            return Script(command=command, timeout_s=self._plan.exploit_timeout_s)

        played = await self._player.play(target.task, target.pristine, script_of, deadline_s=target.deadline_s)
        if not isinstance(played.outcomes[0], Graded):
            played = await self._player.play(target.task, target.pristine, script_of)
        trial = trial_of(Probe.EXPLOIT, played.outcomes[0], exploit=exploit)
        if not earned(trial, target.idle):
            return trial
        changed = ", ".join(played.changed) or "nothing that can be seen"
        return replace(trial, note=f"by design: the task's own verifier accepts it; changed {changed}")

    async def _verdict_files(self, target: _Target) -> list[Trial]:
        """One trial: of a word that earned, and where it was written; else of the one without meaning."""
        paths = _named(target.task, target.pristine)
        instructions = "\n".join(stage.task.instruction for stage in stages_of(target.task))
        right = verdict_files.answers(target.solved.contents, instructions) if target.solved is not None else {}

        async def tried(word: str, some: Sequence[str]) -> Trial | None:
            exploit = verdict_files.attack(word, some, right)
            return None if exploit is None else await self._attack(target, exploit)

        async def earning(word: str, some: Sequence[str]) -> Trial | None:
            trial = await tried(word, some)
            return trial if trial is not None and earned(trial, target.idle) else None

        meaningless = await tried(verdict_files.NEUTRAL, paths)
        if meaningless is None or earned(meaningless, target.idle):
            return []  # whatever stands in these files is accepted: that they exist is the task
        for word in verdict_files.WORDS:
            trial = await earning(word, paths)
            if trial is not None:
                files = [path for path in paths if await earning(word, [path])] or paths
                note = f"by design: the agent's own file {', '.join(files)} is the verdict; it said {word}"
                return [replace(trial, note=note)]
        return [meaningless]


def waived_by(task: Task) -> tuple[str, ...]:
    """Exploits that the task names as ways to solve it: `audit_waived` of its metadata. Raises `TaskError`."""
    value: object = task.metadata.get("audit_waived", [])
    names = cast(list[object], value) if isinstance(value, list) else [value]
    known = {exploit.name for exploit in battery()} | {verdict_files.NAME}
    waived = tuple(name for name in names if isinstance(name, str) and name in known)
    if len(waived) < len(names):
        raise TaskError(
            f"{task.root / 'task.toml'}: metadata.audit_waived = {value!r}: write a list of names of exploits; "
            "docs/how-to/audit.md has them all"
        )
    return waived


def _named(task: Task, pristine: Snapshot) -> tuple[str, ...]:
    found = (
        path
        for stage in stages_of(task)
        for path in verdict_files.named_paths(stage.task.verifier.tests, stage.task.instruction, pristine.workdir)
    )
    return tuple(dict.fromkeys(found))


def _owning(task: Task) -> Task:
    """The task, had it said that it changes the system directories."""
    owned = tuple(f"/{top}" for top in SYSTEM)
    steps = tuple(replace(step, verifier=replace(step.verifier, owned=owned)) for step in task.steps)
    return replace(task, verifier=replace(task.verifier, owned=owned), steps=steps)
