"""Attempts that play programs: real tokens through a real engine, real time in a real pool, nothing sampled or parsed.

    lease ─► [turn: engine.generate(context) ─► the command sleeps ─► its observation is appended] … ─► freeze
                                                              verifier lane: fork, verify ─► Outcome ◄─┘
    with `verify = "in_place"` the verifier runs in the agent's own sandbox and slot

Law: what a program says happens, whoever serves it: a reply has its length, a command its seconds. Token ids are made
up, but they are ids: siblings share their prompt's, every session goes on with its own, so that a prefix cache sees
what it would see. Infrastructure may end an attempt (`Mishaps`), and that is INFRA, as in `rollout.attempt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.engine.pieces import Reply
from muster.engine.port import Engine
from muster.errors import BoundaryError, EngineError, SandboxLost, SandboxStartError, VerifierError, boundary
from muster.lab.collection.workload import PlannedTurn, Program
from muster.rollout.spans import SpanRecorder
from muster.sandbox.pool.pool import Lane, Lease, Pool, Wanted
from muster.sandbox.port import Sandbox, Snapshot
from muster.types import Completion, Ints, Launch, Outcome, Sampling, Segment, Session, Stage, Trajectory, Turn, Version
from muster.types.arrays import UNSAMPLED
from muster.verifier.attribution import grade

Verify = Literal["fork", "in_place"]
Mishap = Literal["boot", "sandbox", "engine", "verifier"]

_FIRST_ID, _IDS = 16, 30_000
"""Token ids are made up from here on, so many different ones: every vocabulary has these."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
_NO_LIMIT_S = 1e9
_BLOCK_TOKENS = 16
"""Caches keep whole blocks: what is short of one was not lost."""


class Mishaps(BaseModel):
    """Mishaps: the share of attempts that infrastructure loses, and where.

    The four kinds' weights are an assumption: no public figure splits failures like this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(default=0.0, ge=0, le=1, description="share of attempts that infrastructure ends")
    boot: float = Field(default=0.3, ge=0, description="weight: the sandbox never answers")
    sandbox: float = Field(default=0.4, ge=0, description="weight: it vanishes in a command, at any turn")
    engine: float = Field(default=0.2, ge=0, description="weight: a request fails, at any turn")
    verifier: float = Field(default=0.1, ge=0, description="weight: the verifier cannot be run")

    def of(self, program: Program, attempt: int) -> tuple[Mishap, int] | None:
        """Mishap of the program's `attempt`-th attempt, and its turn; None: nothing befalls it."""
        if not self.rate:
            return None
        rng = np.random.default_rng([program.seed, attempt])
        if rng.random() >= self.rate:
            return None
        kinds: tuple[Mishap, ...] = ("boot", "sandbox", "engine", "verifier")
        weights = np.array([self.boot, self.sandbox, self.engine, self.verifier])
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        return kind, int(rng.integers(len(program.turns)))


def token_ids(seed: int, start: int, count: int) -> Ints:
    """`count` made-up ids from position `start` of the endless text of `seed`: any cut of it is the same text."""
    x = (np.arange(start, start + count, dtype=np.uint64) + np.uint64(seed + 1)) * _ODD
    x ^= x >> np.uint64(31)
    return (x % np.uint64(_IDS)).astype(np.int32) + np.int32(_FIRST_ID)


class Texts:
    """Texts that each live session says and sees from its first token to its last; the policy of emulated replicas that
    are to say it. Slices of one array a session: an emulated cache compares such prompts without reading them.
    """

    def __init__(self) -> None:
        self._ids: dict[str, Ints] = {}

    def begin(self, launch: Launch, program: Program) -> Ints:
        """The whole text of `launch`, `program.final_tokens` ids."""
        prompt, common = program.prompt_tokens, program.common_tokens
        ids_T = np.concatenate(
            [
                token_ids(0, 0, common),
                token_ids(crc32(launch.task.id.encode()), common, prompt - common),
                token_ids(crc32(launch.id.encode()), prompt, program.final_tokens - prompt),
            ]
        )
        self._ids[launch.id] = ids_T
        return ids_T

    def end(self, launch: Launch) -> None:
        del self._ids[launch.id]

    def __call__(self, prompt: Ints, session: Session, version: Version) -> Ints:
        """An `lab.emulated.replies.Policy`; the engine cuts it where `max_tokens` ends."""
        return self._ids[session.id][len(prompt) :]


class PlannedAttempts:
    """Implements `orchestrator.dispatch.Attempts`.

    program: what a launch plays. texts: also the policy of the replicas behind `engine`, if they are emulated; other
    engines may say what they like. released: called with its session once an attempt has ended, however.

    Example: `PlannedAttempts(program=lambda launch: batch[group(launch)][launch.sibling], engine=fleet, pool=pool)`
    """

    def __init__(
        self,
        *,
        program: Callable[[Launch], Program],
        engine: Engine,
        pool: Pool,
        verify: Verify = "fork",
        mishaps: Mishaps | None = None,
        texts: Texts | None = None,
        released: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._program = program
        self._engine = engine
        self._pool = pool
        self._verify: Verify = verify
        self._mishaps = mishaps or Mishaps()
        self._texts = texts or Texts()
        self._released = released
        self._prepared: dict[str, Snapshot] = {}  # by task digest
        self.sampled: dict[str, int] = {}  # tokens by launch, cancelled ones included

    def prefetch(self, launches: Sequence[Launch]) -> None:
        """As `rollout.attempt.Rollout` does."""
        self._pool.prefetch(
            [
                Wanted(snapshot=snapshot, limits=launch.task.limits)
                for launch in launches
                if (snapshot := self._prepared.get(launch.task.digest)) is not None
            ]
        )

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        """Never raises for what the world did."""
        program = self._program(launch)
        attempt = _Attempt(
            launch=launch,
            program=program,
            spans=spans,
            engine=self._engine,
            pool=self._pool,
            context=_Context.of(self._texts.begin(launch, program), program.prompt_tokens),
            mishap=self._mishaps.of(program, launch.attempt),
        )
        try:
            pristine = await self._pool.backend.prepare(launch.task.image)
            self._prepared[launch.task.digest] = pristine
            outcome = await attempt.outcome(pristine, self._verify)
        except BoundaryError as error:
            outcome = boundary(error)
        finally:
            self._texts.end(launch)
            self.sampled[launch.id] = int((attempt.context.versions_T >= 0).sum())
            self._released(attempt.session)
        return attempt.trajectory(outcome)


@dataclass(slots=True, kw_only=True)
class _Context:
    """The session's text so far is a view of all of it, never a copy."""

    ids_T: Ints
    versions_T: Ints
    length: int
    known: int = 0  # of them an engine has computed before

    @classmethod
    def of(cls, ids_T: Ints, prompt_tokens: int) -> _Context:
        return cls(ids_T=ids_T, versions_T=np.full(len(ids_T), UNSAMPLED, np.int32), length=prompt_tokens)

    @property
    def tokens_T(self) -> Ints:
        return self.ids_T[: self.length]

    def sampled(self, tokens_T: Ints, versions_T: Ints) -> None:
        end = self.length + len(tokens_T)
        self.ids_T[self.length : end] = tokens_T
        self.versions_T[self.length : end] = versions_T
        self.length = self.known = end

    def observed(self, count: int) -> None:
        self.length += count

    def segment(self) -> Segment:
        """Ids are left out: nobody reads made-up ones, and a journal of zeros is small."""
        versions_T = self.versions_T[: self.length]
        zeros_T = np.zeros(self.length, np.int32)
        return Segment(
            tokens_T=zeros_T,
            sampled_T=versions_T >= 0,
            logprobs_T=zeros_T.view(np.float32),
            versions_T=versions_T,
        )


def _split(part: Completion, context: _Context) -> Completion:
    """Of its prefill, what an engine had computed before and no cache gave back is recomputation."""
    computed = context.length - part.cached_tokens
    lost = context.known - part.cached_tokens
    if lost <= _BLOCK_TOKENS:
        return part
    again_s = part.prefill_s * lost / computed
    return replace(part, prefill_s=part.prefill_s - again_s, recompute_s=part.recompute_s + again_s)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """State of an attempt so far; kept when it fails halfway."""

    launch: Launch
    program: Program
    spans: SpanRecorder
    engine: Engine
    pool: Pool
    context: _Context
    mishap: tuple[Mishap, int] | None
    turns: list[Turn] = field(default_factory=list[Turn])

    @property
    def session(self) -> Session:
        return Session(id=self.launch.id, group=self.launch.group_id)

    async def outcome(self, pristine: Snapshot, verify: Verify) -> Outcome:
        self.spans.enter(Stage.SANDBOX_QUEUE)
        asked = clock.now()
        async with self.pool.lease(pristine, self.launch.task.limits, self.launch.id) as lease:
            self.spans.enter(Stage.SANDBOX_START, at=asked + lease.queued_s)
            if self.mishap and self.mishap[0] == "boot":
                raise SandboxStartError(f"{self.launch.id}: injected")
            for index, turn in enumerate(self.program.turns):
                await self._turn(index, turn, lease.sandbox)
                if lease.should_give_way:
                    await self._give_way(lease)
            self.spans.enter(Stage.VERIFY)
            if verify == "in_place":
                return await self._verified(lease.sandbox, queued_s=0.0)
            final = await lease.sandbox.snapshot()
        self.spans.enter(Stage.VERIFIER_QUEUE)
        asked = clock.now()
        limits = self.launch.task.limits
        async with self.pool.lease(final, limits, f"{self.launch.id}-verify", lane=Lane.VERIFIER) as lease:
            self.spans.enter(Stage.VERIFY, at=asked + lease.queued_s)
            return await self._verified(lease.sandbox, queued_s=lease.queued_s)

    async def _give_way(self, lease: Lease) -> None:
        self.spans.enter(Stage.SANDBOX_QUEUE)
        asked = clock.now()
        if await lease.give_way():
            self.spans.enter(Stage.SANDBOX_START, at=max(asked, clock.now() - lease.start_s))

    def trajectory(self, outcome: Outcome) -> Trajectory:
        spans = self.spans.finish()
        return Trajectory(
            id=self.launch.id,
            group_id=self.launch.group_id,
            task_id=self.launch.task.id,
            attempt=self.launch.attempt,
            segments=(self.context.segment(),),
            turns=tuple(self.turns),
            spans=spans,
            outcome=outcome,
            started=self.spans.started,
            ended=spans[-1].end if spans else self.spans.started,
        )

    async def _turn(self, index: int, turn: PlannedTurn, sandbox: Sandbox) -> None:
        prompt_tokens = self.context.length
        if self.mishap == ("engine", index):
            raise EngineError(f"{self.launch.id}: injected")
        cached_tokens = await self._reply(turn.reply_tokens) if turn.reply_tokens else 0
        if self.mishap == ("sandbox", index):
            await sandbox.run(f"sleep {turn.tool_s / 2:.6f}", _NO_LIMIT_S)
            raise SandboxLost(f"{self.launch.id}: injected", by_agent=False)
        result = await sandbox.run(f"sleep {turn.tool_s:.6f}", _NO_LIMIT_S)
        self.context.observed(turn.observation_tokens)
        self.turns.append(
            Turn(
                index=index,
                reply="",
                command="",
                observation="",
                exit_code=result.exit_code,
                sampled_tokens=turn.reply_tokens,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                duration_s=result.duration_s,
            )
        )

    async def _reply(self, count: int) -> int:
        """Sample a reply; what a publication interrupts goes on from its kept tokens. Returns the cached tokens."""
        reply = Reply(self.context.tokens_T, Sampling(max_tokens=count))
        while (whole := reply.whole) is None:
            self.spans.enter(Stage.ENGINE_QUEUE)
            part = await self.engine.generate(reply.prompt, reply.sampling, self.session)
            self.spans.completed(_split(part, self.context), next_stage=Stage.TOOL)
            self.context.sampled(part.tokens_T, part.versions_T)
            reply.add(part)
        assert len(whole.tokens_T) == count, "a planned reply has its length"
        return whole.cached_tokens

    async def _verified(self, sandbox: Sandbox, *, queued_s: float) -> Outcome:
        await sandbox.run(f"sleep {self.program.verify_s:.6f}", _NO_LIMIT_S)
        if self.mishap and self.mishap[0] == "verifier":
            raise VerifierError(f"{self.launch.id}: injected")
        return grade(self.program.reward, success_reward=1.0, evidence={"queued_s": queued_s})
