"""One batch, collected for real: real sandboxes, commands and verifiers, engines behind HTTP, the wall clock.

    CollectionWorld (scaled), programs ─► tasks, engine processes, sandboxes ─► Orchestrator … ─► journal ─► RealRun

Law: the parts are those of a training run (`app/run.py`), but for the trainer, which takes no time, and for what the
policy says, which is replayed. Nothing is left behind, whatever happens.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster import clock
from muster.engine.fleet.fleet import Fleet
from muster.engine.port import EngineStatistics
from muster.journal import Journal, SessionRow
from muster.lab.bench.ttb.real.declared import DeclaredBackend
from muster.lab.bench.ttb.real.engines import serve
from muster.lab.bench.ttb.real.tasks import write_tasks
from muster.lab.bench.ttb.real.words import Groups, WordTokenizer, placed
from muster.lab.collection.collection import CollectionWorld, NumberedTasks, known, loop, parts, pool_config
from muster.lab.collection.timed_sandbox import share
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.resume import Standing
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import DeadlineConfig
from muster.sandbox.deadlines import BoundedBackend
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.types import Launch, Trajectory
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier

COMMAND_SLACK_S = 30.0
_NO_LIMIT = 1 << 40
_OUTPUT_BYTES = 1 << 20  # an observation is shown whole: its tokens are planned


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSetup:
    """Setup of runs: where they happen, and how many processes serve the engines."""

    root: Path
    processes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """Remains of a real collection; close the journal when it was read.

    boot_s: a fork, as the median of the last ones. cpu_share: of all cores, busy with anything. control_share: of one
    core, busy with the process that schedules.
    """

    journal: Journal
    engines: tuple[EngineStatistics, ...]
    boot_s: float
    wall_s: float
    cpu_share: float
    control_share: float

    @property
    def hit_rate(self) -> float:
        """Prompt tokens that were found in a prefix cache, over all prompt tokens."""
        return sum(e.cached_tokens for e in self.engines) / sum(e.prompt_tokens for e in self.engines)


def collect_real(world: CollectionWorld, groups: Groups, seed: int, place: RealSetup) -> RealRun:
    """One batch of `groups` in `world`, whose seconds are real.

    Raises what stops a run: `EngineError`, `SandboxStartError`, `AdmissionStopped`.

    Example: `collect_real(scaled_world(world, scale, groups), groups, 0, RealSetup(root=Path("/tmp/ttb"))).hit_rate`
    """
    return clock.run(collect(world, groups, seed, place))


async def collect(world: CollectionWorld, groups: Groups, seed: int, place: RealSetup) -> RealRun:
    """`collect_real` on the running loop."""
    names = [f"engine{i}" for i in range(world.fleet.replicas)]
    async with contextlib.AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=place.root)))
        tasks = write_tasks(groups, scratch / "tasks")
        Journal.create(scratch / "journal.db", meta={"run": f"seed {seed}"}).close()
        journal = stack.enter_context(Journal.open(scratch / "journal.db", write=True))
        replicas = await stack.enter_async_context(
            serve(names, world.fleet.config(), groups, processes=place.processes)
        )
        pool = await stack.enter_async_context(_pool(world, seed, place))
        fleet = Fleet(replicas, world.fleet.router)
        agent = Agent(engine=fleet, renderer=Renderer(WordTokenizer()), config=_agent(groups))
        rollout = Rollout(
            agent=agent,
            pool=pool,
            verifier=ScriptVerifier(pool, VerifierConfig(scratch_dir=scratch)),
            released=fleet.release,
        )
        cohort = NumberedTasks(lambda number: tasks[number % len(tasks)])
        driven = parts(world, journal, Paced(rollout=rollout, groups=groups), fleet.replicas, cohort)
        standing = Standing(scheduler=known(world, seed) if world.epochs else None)
        orchestrator = Orchestrator(loop(world.training), driven, standing, directory=scratch, seed=seed)
        started, machine, own_s = clock.now(), Busy.now(), clock.cpu_s()
        journal.record(SessionRow(id=1, started=started, pid=0))
        await orchestrator.run()
        ended, machine, own_s = clock.now(), Busy.now() - machine, clock.cpu_s() - own_s
        journal.record(SessionRow(id=1, started=started, pid=0, ended=ended, reason="done"))
        return RealRun(
            journal=journal.copied(),
            engines=tuple([await replica.statistics() for replica in replicas]),
            boot_s=pool.statistics().boot_p50_s or 0.0,
            wall_s=ended - started,
            cpu_share=machine.share,
            control_share=own_s / (ended - started),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """Attempts that end with their program's last turn, as one does that has nothing left to do. Implements
    `collection.Playing`."""

    rollout: Rollout
    groups: Groups

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        group, sibling = placed(launch.id, len(self.groups))
        task = replace(launch.task, max_turns=len(self.groups[group][sibling].turns))
        return await self.rollout.run(replace(launch, task=task), spans, seed)

    def prefetch(self, launches: Sequence[Launch]) -> None:
        self.rollout.prefetch(launches)


def _agent(groups: Groups) -> AgentConfig:
    """No limit but the program's own."""
    turns = [turn for siblings in groups for program in siblings for turn in program.turns]
    return AgentConfig(
        prompt="zero_shot",
        temperature=1.0,
        max_turns=_NO_LIMIT,
        max_tokens_per_turn=max(turn.reply_tokens for turn in turns),
        max_tokens=_NO_LIMIT,
        max_context_tokens=_NO_LIMIT,
        command_timeout_s=max(turn.tool_s for turn in turns) + COMMAND_SLACK_S,
        time_budget_s=_NO_LIMIT,
        observation_chars=_OUTPUT_BYTES,
    )


@contextlib.asynccontextmanager
async def _pool(world: CollectionWorld, seed: int, place: RealSetup) -> AsyncGenerator[Pool]:
    sandboxes = world.sandboxes
    own = {"state_dir": place.root / "sandboxes", "output_cap_bytes": _OUTPUT_BYTES}
    config = pool_config(sandboxes).model_copy(update=own)
    async with contextlib.AsyncExitStack() as stack:
        bounded = BoundedBackend(NamespaceBackend(config, run="ttb"), DeadlineConfig())
        declared = DeclaredBackend(bounded, sandboxes.times, share=lambda name: share(seed, name))
        stack.push_async_callback(declared.close)
        pool = Pool(declared, config)
        stack.push_async_callback(pool.close)
        yield pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """CPU time of the whole machine since it started, in ticks."""

    busy: int
    all: int

    @classmethod
    def now(cls) -> Busy:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        return cls(busy=sum(ticks) - ticks[3] - ticks[4], all=sum(ticks))  # idle and waiting for the disk

    def __sub__(self, before: Busy) -> Busy:
        return Busy(busy=self.busy - before.busy, all=self.all - before.all)

    @property
    def share(self) -> float:
        return self.busy / self.all if self.all else 0.0
