"""Running a verifier until its outcome is decided, with control runs where the agent could be blamed.

    attribution.decide ─► FINAL ───► run(final) ──┐
            ▲         └─► CONTROL ─► run(pristine)┤
            └──────────── Attempt ◄───────────────┘        ─► Outcome

Law: a healthy control is remembered per task and state for a while; a broken one is asked again each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from muster import clock
from muster.sandbox.port import Snapshot
from muster.types import Outcome, Task
from muster.verifier.attribution import Attempt, VerifierRun, decide

Run = Callable[[Snapshot], Awaitable[Attempt]]
"""One run of a verifier on a frozen state. Never raises for what happens inside a sandbox."""


class Controlled:
    """Decides outcomes, and remembers healthy controls for `ttl_s`.

    Example: `outcome = await Controlled(ttl_s=600, success_reward=1.0).outcome(task, final, pristine, run)`
    """

    def __init__(self, *, ttl_s: float, success_reward: float) -> None:
        self._ttl_s = ttl_s
        self._success_reward = success_reward
        self._healthy: dict[tuple[str, str], tuple[float, Attempt]] = {}

    async def outcome(self, task: Task, final: Snapshot, pristine: Snapshot, run: Run) -> Outcome:
        finals: list[Attempt] = []
        controls = self._remembered(task, pristine)
        while True:
            decision = decide(finals, controls, success_reward=self._success_reward)
            if not isinstance(decision, VerifierRun):
                return decision
            if decision is VerifierRun.FINAL:
                finals.append(await run(final))
            else:
                controls.append(await run(pristine))
                self._remember(task, pristine, controls[-1])

    def _remembered(self, task: Task, pristine: Snapshot) -> list[Attempt]:
        found = self._healthy.get((_key(task), pristine.id))
        return [found[1]] if found is not None and found[0] > clock.now() else []

    def _remember(self, task: Task, pristine: Snapshot, control: Attempt) -> None:
        if control.reward is not None:
            self._healthy[_key(task), pristine.id] = (clock.now() + self._ttl_s, control)


def _key(task: Task) -> str:
    """A step of a task has its own verifier."""
    return f"{task.digest} {task.verifier.tests}"
