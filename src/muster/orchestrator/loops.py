"""The loops: the only place where deciding meets doing.

    ┌ collect ────────────────────────────────┐   ┌ train ──────────────────────────────────┐
    │ consumes   slots, allowed lag           │   │ consumes   batches                      │
    │ waits for  anything ended or published  │   │ waits for  the next batch               │
    │ unblocked  by train (a new version)     │   │ unblocked  by collect (a batch)         │
    │ produces   trajectories, batches        │   │ produces   versions                     │
    └─────────────────────────────────────────┘   └─────────────────────────────────────────┘
      watch: once a second reads the engines' statistics into the journal and the live view

Law: what happened is committed to the journal before the scheduler counts it. Synchronous and asynchronous runs
are these same loops under a different `max_lag`; the loops never ask which one it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

from muster import clock
from muster.errors import MusterError
from muster.journal import CheckpointRow, DropRow, EventRow, StepRow
from muster.metrics import Sum
from muster.orchestrator.book import GroupBook
from muster.orchestrator.config import LoopConfig
from muster.orchestrator.decisions import drift, staleness
from muster.orchestrator.decisions.groups import Closed
from muster.orchestrator.delivery import Delivery
from muster.orchestrator.device import DeviceRecorder
from muster.orchestrator.dispatch import derived_seed
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import batch_row, observe_publication, observe_step, observe_trajectory
from muster.orchestrator.resume import Standing
from muster.orchestrator.status import Progress
from muster.orchestrator.watch import DeviceWatch
from muster.types import Batch, Cause, DeviceState, Launch, Trajectory

PREFETCH = 64
"""Launches ahead whose sandboxes the pool may warm; it takes as many as it is configured for."""


class AdmissionStopped(MusterError):
    """Infrastructure fails too often to go on; the message says how often."""


class Stopped(Exception):
    """The user asked for a stop."""


class Signal:
    """Wakes everyone who waits, once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class Orchestrator:
    """Drives one run from where it stands to its last step, or until `stop()`."""

    def __init__(self, config: LoopConfig, parts: Parts, standing: Standing, *, directory: Path, seed: int) -> None:
        self._config = config
        self._p = parts
        self._standing = standing
        self._directory = directory
        self._seed = seed
        self._step = standing.step  # optimiser steps in the trainer's weights
        self._changed = Signal()
        self._stop = asyncio.Event()
        self._made = {row.step + 1: row.ended for row in parts.journal.rows(StepRow)}  # version -> when
        self._batches: deque[Batch] = deque()
        self._book = GroupBook(parts.journal)
        self._device = DeviceRecorder(parts.journal, "trainer", DeviceState.LOADING)
        self._progress = Progress(directory.name, config.steps)
        self._delivery = Delivery(
            journal=parts.journal,
            trainer=parts.trainer,
            publisher=parts.publisher,
            retire=parts.retire,
            canary=parts.canary,
            temperature=parts.temperature,
            attempts=config.publish_attempts,
            patience_s=config.replicas_wait_s,
            serves=parts.serves,
        )
        self._watch = DeviceWatch(parts, self._delivery, self._progress, on_stale=self._changed.fire)

    def stop(self) -> None:
        """Ask for a clean stop: live attempts are dropped, a checkpoint is written, `run` returns."""
        self._stop.set()
        self._changed.fire()

    async def run(self) -> bool:
        """Returns True when all steps are done, False when it was stopped. Errors of the parts pass through."""
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(self._keep_looking()), tasks.create_task(self._until_stopped())]
                await self._begin()
                background.append(tasks.create_task(self._collect(tasks)))
                await self._train()
                for task in background:
                    task.cancel()
            await self._look()
            self._p.metrics.flush(self._step)  # no step trains from the last version, whose publication is in here
            await self._p.dispatcher.finish()
        except* Stopped:
            if self._device.state is DeviceState.BATCH_WAIT:
                await self._checkpoint()
        finally:
            self._delivery.close()
            self._device.close()
        return self._step >= self._config.steps

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise Stopped

    async def _begin(self) -> None:
        """Bring weights, engines and record to where the run stands."""
        if self._standing.checkpoint is not None:
            await self._p.trainer.restore(self._standing.checkpoint)
        self._device.enter(DeviceState.TRAIN)
        for batch in self._standing.redo:
            await self._p.trainer.step(batch)
            self._step += 1
        assert self._step == self._standing.version, "every batch since the checkpoint is made again"
        self._made.setdefault(self._step, clock.now())
        await self._publish(trained_at=clock.now())
        self._restore()
        if not self._p.journal.evaluations():
            await self._evaluate()
        self._p.scheduler.begin(clock.now())
        self._device.enter(DeviceState.BATCH_WAIT)

    def _restore(self) -> None:
        """Take up the groups that a killed or stopped process left, and write down what it lost."""
        now, standing = clock.now(), self._standing
        lost = standing.interrupted.items()
        self._p.journal.record(*(DropRow(id=id, reason="interrupted", at=now, sampled_tokens=n) for id, n in lost))
        self._book.reopen()
        for row in standing.orphaned:
            self._record_closed(Closed(group_id=row.id, drop_reason="task_gone"))
        for closed in self._p.scheduler.restore(
            version=standing.version,
            assembled=standing.version,
            submissions=standing.submissions,
            ready=standing.ready,
            groups=standing.groups,
            now=now,
            put_off=standing.put_off,
            odometer=standing.odometer,
            state=standing.scheduler,
            load=self._p.journal.trajectory,
        ):
            self._record_closed(closed)

    # --- collect

    async def _collect(self, tasks: asyncio.TaskGroup) -> None:
        scheduler = self._p.scheduler
        self._assemble()  # a resumed run may hold a whole batch already
        while True:
            if not (self._delivery.replica_stale or self._delivery.silent):  # it would burn every refill at once
                self._admit(tasks)
            if scheduler.alarm and not scheduler.live:
                raise AdmissionStopped(f"{scheduler.alarm}; admission is stopped. See `muster report`, then --resume")
            await self._changed.wait()

    def _admit(self, tasks: asyncio.TaskGroup) -> None:
        admission = self._p.scheduler.admit()
        self._book.admitted(admission.groups)
        for launch in admission.launches:
            tasks.create_task(self._attempt(launch), name=launch.id)
        self._p.prefetch(self._p.scheduler.upcoming(PREFETCH))

    async def _attempt(self, launch: Launch) -> None:
        """Commit, then count, then see what became possible."""
        try:
            trajectory = await self._p.dispatcher.run(
                launch, "train", derived_seed(self._seed, launch.id), fresh=self._p.scheduler.fresh
            )
        except asyncio.CancelledError:
            self._p.scheduler.cancelled(launch.id)
            self._changed.fire()
            raise
        if trajectory.outcome.cause is Cause.ENGINE_FAILED and self._watch.looked_at < clock.now():
            await self._watch.look_at_engines()  # one that is dead says so here, before its refills fail one by one
        observe_trajectory(self._p.metrics, trajectory)
        self._look_at_task(trajectory)
        closed = self._p.scheduler.ended(trajectory, clock.now())
        if closed is not None:
            self._record_closed(closed)
        self._assemble()
        self._changed.fire()

    def _look_at_task(self, trajectory: Trajectory) -> None:
        """A task whose own image or verifier keeps failing is not tried again."""
        cause = trajectory.outcome.cause
        if cause in (Cause.VERIFIER_FAULT, Cause.IMAGE_FAILED):
            task_id = trajectory.task_id
            if self._p.curriculum.fault(task_id, str(cause)):
                self._p.scheduler.forget(task_id)
                reason = self._p.curriculum.quarantined[task_id]
                self._p.journal.record(EventRow(at=clock.now(), kind="quarantine", message=f"{task_id}: {reason}"))

    def _assemble(self) -> None:
        assembly = self._p.scheduler.assemble(clock.now())
        for closed in assembly.dropped:
            self._record_closed(closed)
        for launch_id, reason in assembly.cancel.items():
            self._p.dispatcher.cancel(launch_id, reason)
        if assembly.batch is not None:
            self._p.journal.record(batch_row(assembly.batch, self._step, trainer_free_at=self._device.since))
            self._batches.append(assembly.batch)
            self._changed.fire()

    # --- train

    async def _train(self) -> None:
        while self._step < self._config.steps:
            batch = await self._next_batch()
            if await self._refused(batch):
                continue
            await self._train_on(batch)
            if self._due(self._config.evaluate_every):
                await self._evaluate()
            if self._due(self._config.checkpoint_every):
                await self._checkpoint()
            self._device.enter(DeviceState.BATCH_WAIT)

    async def _next_batch(self) -> Batch:
        while not self._batches:
            if self._delivery.replica_stale:
                await self._publish_again()
            else:
                await self._changed.wait()
        batch = self._batches.popleft()
        self._p.journal.record(batch_row(batch, self._step, trainer_free_at=self._device.since))
        return batch

    async def _refused(self, batch: Batch) -> bool:
        """Look once more at what is stale in it, now that the policy has moved, and measure it if so configured.
        A batch with a group over a limit is given back, and filled again.
        """
        refused = self._p.scheduler.stale(batch)
        limit, doubtful = self._p.divergence_limit, staleness.suspects(batch)
        if not refused and doubtful and limit is not None and limit.action == "refill":
            self._device.enter(DeviceState.TRAIN)
            refused = staleness.over_limit(await self._p.trainer.measure(doubtful), limit, batch)
            self._device.enter(DeviceState.BATCH_WAIT)
        if not refused:
            return False
        for closed in self._p.scheduler.give_back([batch, *self._batches], refused):
            self._record_closed(closed)
        self._batches.clear()
        self._assemble()
        self._changed.fire()
        return True

    async def _train_on(self, batch: Batch) -> None:
        self._device.enter(DeviceState.TRAIN)
        started = clock.now()
        result = await self._p.trainer.step(batch)
        now = clock.now()
        step = StepRow(
            step=batch.step,
            started=started,
            ended=now,
            metrics=dict(result.metrics),
            divergence=dict(result.divergence),
        )
        observe_step(self._p.metrics, batch, result, self._made, started=started)
        with self._p.journal.transaction():
            self._p.journal.record(step, *self._book.trained(batch, now))
            self._p.scheduler.trained(batch)
            self._p.journal.set_meta("curriculum", self._p.curriculum.state())
            self._p.journal.set_meta("scheduler", self._p.scheduler.state())
            self._p.metrics.flush(batch.step)
        self._step = batch.step + 1
        self._made[self._step] = now
        self._p.scheduler.moved(self._step, drift.measured(step))
        await self._publish(trained_at=now)
        self._p.scheduler.published(self._step)
        self._assemble()
        self._changed.fire()
        self._progress.stepped()

    async def _publish(self, *, trained_at: float) -> None:
        """Make version `self._step` serve everywhere."""
        self._device.enter(DeviceState.PUBLISH)
        records = await self._delivery.deliver(self._step, trained_at=trained_at)
        for record in records:
            self._p.journal.record_publication(record)
        observe_publication(self._p.metrics, records)

    async def _publish_again(self) -> None:
        """A replica that restarted serves nothing until it holds the version that the others serve."""
        self._device.enter(DeviceState.PUBLISH)
        await self._delivery.deliver(self._step, trained_at=clock.now())
        self._p.journal.record(EventRow(at=clock.now(), kind="republished", message=f"version {self._step}"))
        self._device.enter(DeviceState.BATCH_WAIT)
        self._changed.fire()

    async def _evaluate(self) -> None:
        await self._watch.look_at_engines()
        if self._delivery.replica_stale:
            await self._publish_again()
        self._device.enter(DeviceState.EVALUATE)
        self._p.journal.record_evaluation(await self._p.evaluate(self._step))

    async def _checkpoint(self) -> None:
        self._device.enter(DeviceState.CHECKPOINT)
        name = f"checkpoints/step{self._step:06d}"
        await self._p.trainer.save(self._directory / name)
        self._p.journal.record(CheckpointRow(step=self._step, path=name, at=clock.now()))

    def _due(self, every: int) -> bool:
        """At the end always."""
        return self._step >= self._config.steps or (every > 0 and self._step % every == 0)

    # --- watch

    async def _keep_looking(self) -> None:
        while True:
            await self._look()
            await clock.sleep(self._config.watch_interval_s)

    async def _look(self) -> None:
        await self._watch.look(step=self._step, trainer=self._device.state)

    # --- recording

    def _record_closed(self, closed: Closed) -> None:
        self._book.closed(closed)
        if closed.drop_reason == "no_gradient":
            self._p.metrics.observe("groups_no_gradient", Sum(1))
        self._p.dispatcher.forget(closed.group_id)
