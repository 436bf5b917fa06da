"""The agent: turns of engine and sandbox until the model stops or a budget is spent.

    transcript ─generate─► reply ─parse─► command ─run─► observation ─► transcript ─► …
         ▲ instruct: the next step's instruction follows the last reply

Law: a budget is charged only with what the model did: its commands' wall time, and its tokens at a reference
rate. Queues, pauses and infrastructure are never charged. How it ended is returned, not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.engine.pieces import Reply
from muster.engine.port import Engine
from muster.rollout.actions import Action, Commands, Done, Malformed, action_format, describe
from muster.rollout.config import AgentConfig
from muster.rollout.conversation import conversation
from muster.rollout.port import Between, Episode, Spent
from muster.rollout.renderer import Renderer, Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import Sandbox
from muster.types import Cause, Completion, Sampling, Session, Stage, Task, Turn


@dataclass(slots=True)
class _Budget:
    """Budget that is left of the model's own tokens and time. `tokens`: sampled so far, in all steps."""

    config: AgentConfig
    time_s: float
    tokens: int
    spent_s: float

    def charge_tokens(self, count: int) -> None:
        self.tokens += count
        self.spent_s += count / self.config.reference_tokens_per_s

    def exhausted(self, context: int) -> Spent | None:
        if self.tokens >= self.config.max_tokens:
            return Cause.TOKEN_BUDGET
        if self.spent_s >= self.time_s:
            return Cause.TIME_BUDGET
        if context >= self.config.max_context_tokens:
            return Cause.CONTEXT_BUDGET
        return None

    def reply_tokens(self, context: int) -> int:
        """Number of tokens that the next reply may take: at least one while nothing is exhausted."""
        left = min(self.config.max_tokens - self.tokens, self.config.max_context_tokens - context)
        return min(self.config.max_tokens_per_turn, left)


@dataclass(frozen=True, slots=True)
class _Observed:
    """Observation that came back to the model for one command, or for a reply without one."""

    text: str
    exit_code: int | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Plays one task in one sandbox. Errors of engine and sandbox pass through."""

    engine: Engine
    renderer: Renderer
    config: AgentConfig

    def begin(self, task: Task) -> Episode:
        messages = conversation(self.config.prompt, task.instruction)
        return Episode(Transcript(self.renderer.prompt(messages)))

    def instruct(self, episode: Episode, instruction: str) -> None:
        """Go on with the next step's instruction, after the model said that it is done with the last."""
        episode.step += 1
        episode.spent_s = 0.0
        message = {"role": "user", "content": instruction}
        episode.transcript.observed(self.renderer.observation([message], stopped=episode.stopped))

    async def play(
        self,
        task: Task,
        episode: Episode,
        sandbox: Sandbox,
        session: Session,
        spans: SpanRecorder,
        seed: int | None = None,
        between: Between | None = None,
    ) -> Spent | None:
        """Play until the model says that it is done (None) or a budget is spent (which one).

        `task` may be one step of several: its time is its own, turns, tokens and context are the whole trajectory's.
        `episode` may have turns already: they are charged as if they had been played here.
        """
        config = self.config
        form = action_format(config.action_format)
        transcript, turns = episode.transcript, episode.turns
        time_s = task.agent_timeout_s or config.time_budget_s
        budget = _Budget(config, time_s, episode.sampled_tokens, episode.spent_s)
        last = min(config.max_turns, task.max_turns or config.max_turns)
        if len(turns) >= last:
            return Cause.TURN_BUDGET
        while (spent := budget.exhausted(len(transcript))) is None:
            before = len(transcript)
            completion = await self._reply(transcript, budget, session, spans, seed, len(turns))
            episode.stopped = completion.finish == "stop"
            reply = self.renderer.text(completion.tokens_T.tolist())
            action = form.parse(reply)
            observed: list[_Observed] = []
            try:
                await self._act(action, sandbox, budget, observed)
            finally:  # a command that ended its sandbox is part of the record
                turns.append(_turn(episode, reply, action, observed, completion, prompt_tokens=before))
            if isinstance(action, Done):
                return None
            if len(turns) >= last:
                return Cause.TURN_BUDGET
            messages = form.observe([o.text for o in observed])
            transcript.observed(self.renderer.observation(messages, stopped=episode.stopped))
            episode.spent_s = budget.spent_s
            if between is not None:
                await between()
        return spent

    async def _reply(
        self,
        transcript: Transcript,
        budget: _Budget,
        session: Session,
        spans: SpanRecorder,
        seed: int | None,
        turn: int,
    ) -> Completion:
        """Sample one reply into the transcript. A request aborted by a publication goes on from its kept tokens."""
        sampling = Sampling(
            temperature=self.config.temperature,
            max_tokens=budget.reply_tokens(len(transcript)),
            stop_tokens=self.renderer.stop_tokens,
            seed=None if seed is None else seed + 1000 * turn,
        )
        reply = Reply(transcript.tokens, sampling)
        while (whole := reply.whole) is None:
            spans.enter(Stage.ENGINE_QUEUE)
            part = await self.engine.generate(reply.prompt, reply.sampling, session)
            spans.completed(part, next_stage=Stage.TOOL)
            transcript.sampled(part)
            budget.charge_tokens(len(part.tokens_T))
            reply.add(part)
        return whole

    async def _act(self, action: Action, sandbox: Sandbox, budget: _Budget, observed: list[_Observed]) -> None:
        if isinstance(action, Malformed):
            observed.append(_Observed(action.advice))
        if not isinstance(action, Commands):
            return
        silence_s = self.config.command_silence_s
        for command in action.commands:
            timeout_s = min(self.config.command_timeout_s, max(0.1, budget.time_s - budget.spent_s))
            result = await sandbox.run(command, timeout_s, silence_s=silence_s)
            budget.spent_s += result.duration_s
            limit_s = silence_s if result.silent and silence_s else timeout_s
            text = describe(result, timeout_s=limit_s, limit_chars=self.config.observation_chars)
            observed.append(_Observed(text, result.exit_code, result.duration_s))


def _turn(
    episode: Episode,
    reply: str,
    action: Action,
    observed: list[_Observed],
    completion: Completion,
    *,
    prompt_tokens: int,
) -> Turn:
    """`observed` may fall short of the commands: the last of those that ran then took the sandbox with it."""
    ran = action.commands[: len(observed) + 1] if isinstance(action, Commands) else ()
    texts = tuple(o.text for o in observed)
    return Turn(
        index=len(episode.turns),
        reply=reply,
        command="\n".join(action.commands) if isinstance(action, Commands) else None,
        observation="\n".join(texts),
        exit_code=observed[-1].exit_code if observed else None,
        commands=ran,
        observations=texts if ran else (),
        step=episode.step,
        sampled_tokens=len(completion.tokens_T),
        prompt_tokens=prompt_tokens,
        cached_tokens=completion.cached_tokens,
        duration_s=sum(o.duration_s for o in observed),
    )
