"""One simulated world: the real orchestrator over fakes with faults, lived to its end on the virtual clock.

    scenario ─► life ─► done │ stopped by a named failure │ killed between two commits
                  ▲                 └──── the operator resumes from the journal ────┘
              laws: at every hand-over, at the end of every life, at the end of the run

Law: the same seed gives the same journal, byte for byte. What the simulation may not import (evaluation, reports) is
passed in. The first broken law ends the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

from muster import clock
from muster.errors import EngineError, PublicationError, TrainerError, leaves
from muster.journal import EventRow, Journal, KeepRow, StepRow, TrajectoryRow
from muster.lab.world import breaks
from muster.lab.world.account import check_end, check_life
from muster.lab.world.chaos import Fault
from muster.lab.world.crashing_journal import CrashingJournal
from muster.lab.world.laws import STALL_S, Law, LawBroken
from muster.lab.world.life import MakeEvaluate, SharedParts, begin
from muster.lab.world.scenario import Scenario
from muster.orchestrator.loops import AdmissionStopped

CheckTimes = Callable[[Journal], Sequence[str]]
"""What is wrong with the times of the batches, one line each: their parts must sum to them."""

EXPECTED = (EngineError, PublicationError, TrainerError, AdmissionStopped)
"""What may stop a run: failures of the world, with their cause."""
MAX_LIVES = 80
OPERATOR_S = 60.0  # from a stop to the resume
MACHINE_LOST = 0.2
"""Of the kills: the process goes on elsewhere, and finds nothing that was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A law that was broken, and when, in virtual seconds."""

    law: Law
    at: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """Result of a world. `journal`: sha256 of the record's bytes."""

    seed: int
    lives: int
    steps: int
    trajectories: int
    virtual_s: float
    injected: Mapping[str, int]
    stops: Mapping[str, int]  # lives that ended early, by what ended them
    journal: str
    violation: Violation | None = None


class World:
    """Simulated world of one scenario.

    Example: `clock.run_virtual(World(scenario(7), make_evaluate, check_times).run())` gives a `WorldResult`.
    """

    def __init__(
        self,
        scenario: Scenario,
        make_evaluate: MakeEvaluate,
        check_times: CheckTimes,
        *,
        broken: Law | None = None,
    ) -> None:
        self._scenario = scenario
        self._make_evaluate = make_evaluate
        self._check_times = check_times
        self._broken = broken
        self._stops: Counter[str] = Counter()
        made = breaks.LossyJournal if broken is Law.COUNTS else CrashingJournal
        self.journal = made.in_memory(meta={"run": f"seed {scenario.seed}"})

    async def run(self) -> WorldResult:
        """Live it to its end, or to the first broken law."""
        shared = SharedParts(self._scenario, self._make_evaluate, self._broken)
        lives, violation = 0, None
        async with _mishaps(shared):
            try:
                while not await self._life(shared, lives):
                    lives += 1
                    shared.laws.check(Law.LIVENESS, lives < MAX_LIVES, f"not done after {lives} lives")
                    await clock.sleep(OPERATOR_S)
                check_end(self.journal, self._scenario.steps)
                wrong = self._check_times(self.journal)
                shared.laws.check(Law.TTB, not wrong, "; ".join(wrong))
            except LawBroken as broken:
                violation = Violation(law=broken.law, at=broken.at, message=str(broken))
        return WorldResult(
            seed=self._scenario.seed,
            lives=lives + 1,
            steps=self.journal.count(StepRow),
            trajectories=self.journal.count(TrajectoryRow),
            virtual_s=clock.now(),
            injected=dict(shared.chaos.injected),
            stops=dict(self._stops),
            journal=hashlib.sha256(self.journal.to_bytes()).hexdigest(),
            violation=violation,
        )

    async def _life(self, shared: SharedParts, number: int) -> bool:
        """One process of the orchestrator. True when the run is done; raises `LawBroken`."""
        shared.laws.new_life(self.journal.count(StepRow))
        life = begin(shared, self.journal)
        main = asyncio.ensure_future(life.orchestrator.run())
        if number < len(self._scenario.kills):
            life.journal.crash_after(self._scenario.kills[number], main.cancel)
        ended = await _ended(shared, main)
        life.journal.cancel_crash()
        await life.pool.close()
        backend, fleet = life.backend.inner, self._scenario.fleet
        shared.laws.check(Law.SANDBOXES, backend.live == 0, f"{backend.live} sandboxes are left")
        shared.laws.check(Law.SANDBOXES, backend.snapshots <= 1, f"{backend.snapshots} states are left")
        most = life.backend.most_live
        shared.laws.check(Law.SLOTS, most <= fleet.sandboxes + fleet.verifiers, f"{most} sandboxes were alive at once")
        record = life.journal.survivor or life.journal
        wanted = {s for row in record.rows(KeepRow) for s in (row.snapshot, row.previous)}
        unwanted = shared.disk.kept.keys() - wanted
        if life.journal.survivor is not None:
            shared.wordless |= unwanted
            self._killed(shared, life.journal, life.journal.survivor)
            return False
        if isinstance(ended, BaseException):
            self._stopped(shared, ended)
        kept = unwanted - shared.wordless if ended is not True else shared.disk.kept.keys() - shared.wordless
        shared.laws.check(Law.SANDBOXES, not kept, f"{len(kept)} kept states are left")
        if life.scheduler.restored:
            check_life(
                life.journal,
                life.scheduler.statistics(),
                self._scenario,
                resumes=number,
                reached_s=shared.laws.reached_s,
            )
        return ended is True

    def _killed(self, shared: SharedParts, dying: CrashingJournal, survivor: CrashingJournal) -> None:
        shared.chaos.injected[Fault.KILL] += 1
        self._stops["killed"] += 1
        dying.close()
        self.journal = survivor
        for replica in shared.replicas:  # half of the engines die with the orchestrator, the others serve on
            if shared.chaos.rng.random() < 0.5:
                replica.inner.crash("its orchestrator was killed")
                replica.inner.restart()
        if shared.chaos.rng.random() < MACHINE_LOST:
            shared.disk.kept.clear()

    def _stopped(self, shared: SharedParts, error: BaseException) -> None:
        """A stop by the world's failures is what production does; anything else is a broken law."""
        found = list(leaves(error))
        for leaf in found:
            if isinstance(leaf, LawBroken):
                raise leaf
        surprises = [e for e in found if not isinstance(e, EXPECTED)]
        if surprises:
            raise LawBroken(Law.CRASH, repr(surprises[0])) from surprises[0]
        for leaf in found:
            serving = [r.name for r in shared.replicas if r.inner.faults.serves]
            unneeded = isinstance(leaf, EngineError) and serving
            shared.laws.check(Law.LIVENESS, not unneeded, f"stopped by {leaf}, and {serving} serve")
        self._stops[type(found[0]).__name__] += 1
        self.journal.record(EventRow(at=clock.now(), kind="stopped", message=str(found[0])))


async def _ended(shared: SharedParts, main: asyncio.Future[bool]) -> bool | BaseException:
    """Wait for what `main` comes to. Raises `LawBroken` when nothing ends for `STALL_S`."""
    while not main.done():
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(STALL_S / 4):
                await asyncio.gather(asyncio.shield(main), return_exceptions=True)
        stalled_s = clock.now() - shared.laws.progress_at
        if not main.done() and stalled_s > STALL_S:
            stuck = LawBroken(Law.LIVENESS, f"nothing ended for {stalled_s:.0f} s")
            main.cancel()
            with contextlib.suppress(TimeoutError):
                async with clock.timeout(STALL_S):
                    await asyncio.gather(main, return_exceptions=True)
            raise stuck
    return asyncio.CancelledError() if main.cancelled() else main.exception() or main.result()


@contextlib.asynccontextmanager
async def _mishaps(shared: SharedParts) -> AsyncGenerator[None]:
    """Replicas crash and restart while the run goes on."""
    faults = shared.scenario.rates.keys() & {Fault.ENGINE_CRASH, Fault.ENGINE_RESTART}
    tasks = [asyncio.ensure_future(r.mishaps()) for r in shared.replicas if faults]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
