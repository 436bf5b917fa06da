"""An agent of one's own: Muster's, shown what it left behind before it may say that it is done.

    python examples/own_agent.py                                         # trains the starter model with it
    PYTHONPATH=examples muster train --set agent.player=own_agent:Careful

Small models stop early. This one is asked once, with a listing of its files, and may go on. What a player must keep to,
and one that is written from nothing: docs/how-to/own-agent.md.
"""

from __future__ import annotations

from dataclasses import replace

import muster
from muster.rollout.actions import describe

QUESTION = "You said DONE. This is what is there now. Fix what is missing, or say DONE again."
LISTING_S = 5.0


class Careful(muster.Agent):
    """Plays as Muster's own agent does; `begin` and `instruct` are inherited."""

    async def play(
        self,
        task: muster.Task,
        episode: muster.Episode,
        sandbox: muster.Sandbox,
        session: muster.Session,
        spans: muster.SpanRecorder,
        seed: int | None = None,
        between: muster.Between | None = None,
    ) -> muster.Spent | None:
        while (spent := await super().play(task, episode, sandbox, session, spans, seed, between)) is None:
            if any(turn.observation.startswith(QUESTION) for turn in episode.turns if turn.step == episode.step):
                return None  # it was asked already, perhaps before a keep point: what is known stands in the episode
            await self._ask(episode, sandbox, spans)
        return spent

    async def _ask(self, episode: muster.Episode, sandbox: muster.Sandbox, spans: muster.SpanRecorder) -> None:
        spans.enter(muster.Stage.TOOL)
        result = await sandbox.run("ls -Alp", LISTING_S)
        listing = describe(result, timeout_s=LISTING_S, limit_chars=self.config.observation_chars)
        text = f"{QUESTION}\n{listing}"
        episode.transcript.observed(
            self.renderer.observation([{"role": "user", "content": text}], stopped=episode.stopped)
        )
        episode.turns[-1] = replace(episode.turns[-1], observation=text)


if __name__ == "__main__":
    muster.train({"loop": {"steps": 4}}, player=Careful)
