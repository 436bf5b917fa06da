"""The composition root: the only place that picks adapters.

    config ─► model, suites, engine process, trainer process, sandboxes, verifier ─► Orchestrator ─► report

Law: build, connect, run, close in reverse order, whatever happened. No decision about scheduling, grading or
training is made here. A run is a directory:

    run/  config.toml  journal.db  metrics.jsonl  tasks/  checkpoints/  report.html  figures/
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import os
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from muster import clock
from muster.app.environments import environment
from muster.app.reporting import leave_behind
from muster.config import RunConfig, given, to_toml, validate
from muster.engine.fleet.fleet import Fleet
from muster.engine.launching import is_ours, launch
from muster.engine.port import Replica
from muster.engine.servers.restarter import Seat, restarting
from muster.errors import MusterError, UserError, leaves
from muster.evaluate import Evaluator
from muster.journal import FILE_NAME, EventRow, Journal, SessionRow
from muster.metrics import JsonlSink, Metrics
from muster.model.tokenizer import tokenizer_from
from muster.model.weights import resolve
from muster.observe.live.dashboard import Dashboard, PlainLog
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.garbage import seldom_collected
from muster.orchestrator.keeps import Keeps
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import JournalSink
from muster.orchestrator.resume import standing
from muster.orchestrator.status import PoolStatus
from muster.publish.publisher import Publisher
from muster.publish.transports import exporter_for, reap, retire
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.own_player import OwnPlayer, load_player, name_of
from muster.rollout.port import MakePlayer
from muster.rollout.renderer import Renderer
from muster.sandbox.pool.pool import Pool
from muster.tasks.curriculum import Curriculum
from muster.tasks.suite import Suites, load_suites
from muster.trainer.checkpoint import as_model
from muster.trainer.process.trainer import ProcessTrainer
from muster.types import Evaluation
from muster.verifier.function import load_score, source_digest
from muster_suites.write import generate


def train(
    config: RunConfig | Path | str | Mapping[str, Any] | None = None,
    directory: Path | str | None = None,
    *,
    player: MakePlayer | None = None,
    console: Console | None = None,
    plain: bool = False,
) -> Path:
    """Train from the beginning; returns the run's directory.

    config: a `RunConfig`, the path of a TOML file, or its values; default: the starter run.
    directory: where the run is kept; default `runs/<time>`.
    player: the class of an own agent, in place of naming it as `agent.player`.

    Raises `UserError` for a configuration, model, task or player that cannot be used, another `MusterError` when a part
    failed; such a run can be resumed. Example: `muster.train({"model": "/models/mine", "loop": {"steps": 20}})`
    """
    directory = Path(directory) if directory else _new_directory("train")
    _drive(_Place.create(named(given(config), player), directory, player), console or Console(), plain=plain)
    return directory


def resume(
    directory: Path | str, *, player: MakePlayer | None = None, console: Console | None = None, plain: bool = False
) -> Path:
    """Continue a run that was stopped or killed; returns its directory. Raises as `train`.

    player: the one of the run, where its module cannot be found by name: it was defined in a script.
    """
    directory = Path(directory)
    _drive(_Place.open(directory, player), console or Console(), plain=plain)
    return directory


def evaluate(
    config: RunConfig | Path | str | Mapping[str, Any] | None = None,
    directory: Path | str | None = None,
    *,
    player: MakePlayer | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Pass rate of `config.model` on the held-out tasks, through the serving engine. Arguments as of `train`."""
    directory = Path(directory) if directory else _new_directory("eval")
    place = _Place.create(named(given(config), player), directory, player)
    return _one_evaluation(place, console or Console())


def evaluate_run(run: Path, directory: Path | None = None, *, console: Console | None = None) -> Evaluation:
    """Evaluate the last checkpoint of a run, on the run's own held-out tasks."""
    config = _config_of(run)
    checkpoints = sorted((run / "checkpoints").glob("step*"))
    if not checkpoints:
        raise UserError(f"{run}: no checkpoint there yet")
    model = as_model(checkpoints[-1], resolve(config.model), run / "merged" / checkpoints[-1].name)
    tasks = config.tasks
    if tasks.train is None:
        tasks = tasks.model_copy(update={"train": run / "tasks/train", "heldout": run / "tasks/heldout"})
    return evaluate(config.model_copy(update={"model": str(model), "tasks": tasks}), directory, console=console)


# --- the place of a run -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A run's directory, configuration and suites."""

    config: RunConfig
    directory: Path
    model: Path
    renderer: Renderer
    player: OwnPlayer | None  # None: Muster's own agent
    suites: Suites

    @classmethod
    def create(cls, config: RunConfig, directory: Path, make: MakePlayer | None = None) -> _Place:
        """Check what the user named before anything is written, then write it down."""
        if (directory / FILE_NAME).exists():
            raise UserError(f"{directory}: a run is there already; continue it with --resume, or name another --output")
        place = cls._checked(config, directory, make)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.toml").write_text(to_toml(config), encoding="utf-8")
        meta = {
            "run": directory.name,
            "created": clock.now(),
            "config": config.model_dump(mode="json"),
            "muster_version": distribution_version("muster-rl"),
            "model": config.model,
            "tasks_digest": place.suites.digest,
            "seed": config.seed,
        }
        Journal.create(directory / FILE_NAME, meta=meta).close()
        return place

    @classmethod
    def open(cls, directory: Path, make: MakePlayer | None = None) -> _Place:
        if not (directory / FILE_NAME).exists():
            raise UserError(f"{directory}: no run to resume there (no {FILE_NAME})")
        return cls._checked(_config_of(directory), directory, make)

    @classmethod
    def _checked(cls, config: RunConfig, directory: Path, make: MakePlayer | None) -> _Place:
        """A place, when all that the configuration names is there; only a suite that is generated is written."""
        if config.verifier.score:
            load_score(config.verifier.score)
        if config.agent.player:
            make = make or load_player(config.agent.player)
        model = resolve(config.model)
        renderer = Renderer(tokenizer_from(model))
        player = OwnPlayer(make, renderer=renderer, config=config.agent) if make else None
        suites = load_suites(config.tasks, directory / "tasks", seed=config.seed, generate=generate)
        if player:
            player.begin(suites.train[0])  # what it raises is known before anything starts
        return cls(config=config, directory=directory, model=model, renderer=renderer, player=player, suites=suites)


def _config_of(directory: Path) -> RunConfig:
    """Configuration as the run's journal holds it; `config.toml` is for people."""
    with Journal.open(directory / FILE_NAME) as journal:
        return validate(journal.meta()["config"], source=str(directory / FILE_NAME))


def named(config: RunConfig, player: MakePlayer | None) -> RunConfig:
    """The record names the player, so that another process finds it."""
    if player is None:
        return config
    if config.agent.player:
        raise UserError(f"agent.player = {config.agent.player!r}, and another is given as player=: leave one out")
    return config.model_copy(update={"agent": config.agent.model_copy(update={"player": name_of(player)})})


def _new_directory(kind: str) -> Path:
    now = datetime.datetime.fromtimestamp(clock.now())
    return Path("runs") / f"{kind}-{now:%Y%m%d-%H%M%S}"


@contextlib.contextmanager
def _driving(directory: Path) -> Generator[Journal]:
    """One process drives a run; the lock goes with the process, however it ends. Yields the run's journal."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory}: another process drives this run") from None
        with (
            Journal.open(directory / FILE_NAME, write=True) as journal,
            _session(journal),
            seldom_collected(),
            _plain_errors(),
        ):
            yield journal


@contextlib.contextmanager
def _session(journal: Journal) -> Generator[None]:
    """Write down when this process began to drive the run, and why it ended."""
    row = SessionRow(id=journal.count(SessionRow), started=clock.now(), pid=os.getpid())
    journal.record(row)
    reason = "ended"
    try:
        yield
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        journal.record(replace(row, ended=clock.now(), reason=reason))


# --- driving ------------------------------------------------------------------------------------------


def _drive(place: _Place, console: Console, *, plain: bool) -> None:
    console.print(f"run {place.directory}: {len(place.suites.train)} tasks, {len(place.suites.heldout)} held out")
    for note in place.suites.notes:
        console.print(note, markup=False)
    with _driving(place.directory) as journal:
        done = clock.run(_train(place, journal, console, plain=plain))
    if done:
        leave_behind(place.directory, console)
    else:
        console.print(f"stopped. Continue with: muster train --resume {place.directory}")


def _one_evaluation(place: _Place, console: Console) -> Evaluation:
    async def main(journal: Journal) -> Evaluation:
        async with _built(place, journal) as built:
            evaluation = await built.evaluator(0)
            journal.record_evaluation(evaluation)
            return evaluation

    with _driving(place.directory) as journal:
        evaluation = clock.run(main(journal))
    leave_behind(place.directory, console)
    return evaluation


@contextlib.contextmanager
def _plain_errors() -> Generator[None]:
    """Task groups wrap what went wrong; the first of our own errors is what the user needs to see."""
    try:
        yield
    except* MusterError as group:
        raise next(leaves(group)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """Parts that training and evaluation share."""

    engines: tuple[Replica, ...]
    fleet: Fleet
    pool: Pool
    rollout: Rollout
    dispatcher: Dispatcher
    evaluator: Evaluator
    canary: list[int]


@contextlib.asynccontextmanager
async def _built(place: _Place, journal: Journal) -> AsyncGenerator[_Built]:
    """Engine process, sandboxes and verifier, connected; closed in reverse order."""
    config = place.config
    async with contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(environment(config.sandbox, config.verifier, label=place.directory.name))
        fleet = Fleet([f"engine{index}" for index in range(config.engine.replicas)], config.router)
        restarters = await stack.enter_async_context(asyncio.TaskGroup())
        async with asyncio.TaskGroup() as starts:  # a server takes its time, and most of that it waits
            for index, member in enumerate(fleet.replicas):
                engine = _restarted_engine(place, journal, index, member, restarters)
                starts.create_task(stack.enter_async_context(engine))
        agent = (
            place.player.serve(fleet)
            if place.player
            else Agent(engine=fleet, renderer=place.renderer, config=config.agent)
        )
        keeps = Keeps(journal, here.pool.backend, config.agent.keep_every_s)
        stack.push_async_callback(keeps.tidy)
        rollout = Rollout(agent=agent, pool=here.pool, verifier=here.verifier, released=fleet.release, keeper=keeps)
        dispatcher = Dispatcher(journal, rollout, keeps)
        fingerprint = {
            "engine": config.engine.kind,
            "dtype": config.engine.dtype,
            "temperature": config.agent.temperature,
            "prompt": config.agent.prompt,
            "tasks_digest": place.suites.digest,
            "muster_version": distribution_version("muster-rl"),
            **(place.player.fingerprint if place.player else {}),
        }
        evaluator = Evaluator(
            config.evaluate,
            journal=journal,
            dispatcher=dispatcher,
            engine=fleet,
            tasks=place.suites.heldout,
            fingerprint=fingerprint,
            seed=config.seed,
        )
        canary = agent.begin(place.suites.train[0]).transcript.tokens.tolist()[: config.publish.canary_tokens]
        yield _Built(
            engines=fleet.replicas,
            fleet=fleet,
            pool=here.pool,
            rollout=rollout,
            dispatcher=dispatcher,
            evaluator=evaluator,
            canary=canary,
        )


def _restarted_engine(
    place: _Place, journal: Journal, index: int, seat: Seat, restarters: asyncio.TaskGroup
) -> contextlib.AbstractAsyncContextManager[None]:
    """The `index`-th server in its seat, started again when it ends; the journal is told of each end."""
    config = place.config
    log = place.directory / "logs" / f"{seat.name}.log"
    return restarting(
        lambda on_end: launch(config.engine, place.model, seat.name, index=index, on_end=on_end, log=log),
        seat,
        config.servers,
        restarters=restarters,
        ours=is_ours(config.engine),
        say=lambda words: journal.record(EventRow(at=clock.now(), kind="engine_ended", message=words)),
    )


async def _train(place: _Place, journal: Journal, console: Console, *, plain: bool) -> bool:
    config = place.config
    standing_now = standing(journal, place.directory, {t.id: t for t in place.suites.train})
    curriculum = Curriculum(place.suites.train, config.curriculum, np.random.default_rng(config.seed))
    if standing_now.curriculum:
        curriculum.restore(standing_now.curriculum)
    view = PlainLog(console) if plain else Dashboard(console)
    async with contextlib.AsyncExitStack() as stack:
        reap()
        stack.callback(reap)  # engines end by a kill and tidy nothing up
        exporter = exporter_for(config.publish.transport, run_label=place.directory.name, directory=place.directory)
        stack.callback(exporter.clear)
        trainer = await stack.enter_async_context(
            ProcessTrainer(
                config.trainer, model=str(place.model), temperature=config.agent.temperature, exporter=exporter
            )
        )
        built = await stack.enter_async_context(_built(place, journal))
        if isinstance(view, Dashboard):
            stack.enter_context(view)
        orchestrator = Orchestrator(
            config.loop,
            Parts(
                journal=journal,
                metrics=Metrics([JournalSink(journal), JsonlSink(place.directory / "metrics.jsonl")]),
                scheduler=_scheduler(config, curriculum),
                curriculum=curriculum,
                dispatcher=built.dispatcher,
                trainer=trainer,
                publisher=Publisher(built.engines, config.publish),
                engines=built.engines,
                retire=retire,
                evaluate=built.evaluator,
                prefetch=built.rollout.prefetch,
                pool_status=_pool_status(built.pool),
                on_status=lambda status: view.update(status, journal),
                groups_per_batch=config.schedule.groups_per_batch,
                canary=np.array(built.canary, np.int32),
                temperature=config.agent.temperature,
                divergence_limit=config.trainer.divergence_limit,
                serves=built.fleet.serving,
            ),
            standing_now,
            directory=place.directory,
            seed=config.seed,
        )
        with _stop_on_interrupt(orchestrator.stop, console):
            return await orchestrator.run()


def _scheduler(config: RunConfig, curriculum: Curriculum) -> Scheduler:
    grader = source_digest(config.verifier.score) if config.verifier.score else ""
    return Scheduler(config.schedule, curriculum, steps=config.loop.steps, grader=grader)


def _pool_status(pool: Pool) -> Callable[[], PoolStatus]:
    def read() -> PoolStatus:
        agent = pool.statistics().agent
        return PoolStatus(slots=agent.capacity, live=agent.live, warm=agent.warm, waiting=agent.waiting)

    return read


@contextlib.contextmanager
def _stop_on_interrupt(stop: Callable[[], None], console: Console) -> Generator[None]:
    """The first Ctrl-C (or SIGTERM) stops cleanly; the second one is Python's own interrupt."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        console.print("stopping: live attempts are dropped, a checkpoint is written (Ctrl-C again: at once)")
        loop.remove_signal_handler(signal.SIGINT)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
