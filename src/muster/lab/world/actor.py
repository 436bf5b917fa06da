"""A simulated model: what it replies, and the tokenizer it speaks in.

Law: a reply is a function of the seed, the sibling and the turn, never of timing: the same sibling plays the same way
whatever the world does to it, also when it is launched again or continued. A token is a character.

    session ─► script: turns, lengths, tool times, success ─► "…… ```bash sleep 3.1; echo yes > done```" ─► "DONE"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.lab.world.chaos import Chaos, Fault, stream
from muster.lab.world.scenario import Scenario
from muster.rollout.renderer import Message
from muster.types import Ints, Session, Version

START, STOP = "\x01", "\x02"
DONE_FILE = "/app/done"
_OPENING = f"{START}assistant\n"


class CharTokenizer:
    """Token id = code point. START and STOP are the special tokens."""

    stop_tokens = (ord(STOP),)

    def encode(self, text: str) -> list[int]:
        return [*map(ord, text)]

    def encode_plain(self, text: str) -> list[int]:
        return [*map(ord, text.replace(START, "?").replace(STOP, "?"))]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        text = "".join(f"{START}{m['role']}\n{m['content']}{STOP}\n" for m in messages)
        return text + (_OPENING if add_generation_prompt else "")


@dataclass(frozen=True, slots=True)
class _Script:
    """Script of one attempt. `opening`: STOP tokens in its first prompt; each turn adds two."""

    opening: int
    replies: tuple[list[int], ...]


class Actor:
    """The policy of a world. Example: `FakeReplica("engine0", policy=Actor(scenario, chaos).reply)`"""

    def __init__(self, scenario: Scenario, chaos: Chaos) -> None:
        self._scenario = scenario
        self._chaos = chaos
        self._scripts: dict[str, _Script] = {}

    def reply(self, tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        stops = int(np.count_nonzero(tokens == ord(STOP)))
        sibling = _sibling(session)
        script = self._scripts.get(sibling)
        if script is None:
            script = self._scripts[sibling] = _Script(stops, self._replies(session))
        turn = (stops - script.opening) // 2
        made = len(tokens) - (int(np.flatnonzero(tokens == ord(START))[-1]) + len(_OPENING))  # before an abort
        return script.replies[min(turn, len(script.replies) - 1)][made:]

    def _replies(self, session: Session) -> tuple[list[int], ...]:
        rng = stream(self._scenario.seed, f"attempt/{_sibling(session)}")
        workload = self._scenario.workload
        stretch = 10 if self._happens(rng, Fault.LONG_TRAJECTORIES) else 1
        turns = max(1, round(workload.turns.draw(rng))) * min(stretch, 3)
        # half of the groups have a task that is neither always nor never solved
        chance = float(stream(self._scenario.seed, f"group/{session.group}").choice([0.0, 0.3, 0.5, 0.7, 1.0]))
        word = "yes > done" if rng.random() < chance else "no > other"
        commands = [f"sleep {workload.tool_s.draw(rng) * stretch:.3f}; echo {word}" for _ in range(turns)]
        if self._happens(rng, Fault.SANDBOX_DESTROYED):
            commands[-1] = "destroy"

        blocks = [
            f"{'.' * int(workload.reply_tokens.draw(rng))}\n```bash\n{command}\n```{STOP}" for command in commands
        ]
        return tuple([*map(ord, text)] for text in (*blocks, f"DONE{STOP}"))

    def _happens(self, rng: np.random.Generator, fault: Fault) -> bool:
        """As `Chaos.happens`, but decided by the attempt itself."""
        happens = rng.random() < self._chaos.rates.get(fault, 0.0)
        self._chaos.injected[fault] += happens
        return happens


def _sibling(session: Session) -> str:
    """Of all its launches: `g000012.3a1` is the second one of `g000012.3`."""
    group, _, launch = session.id.rpartition(".")
    return f"{group}.{launch.partition('a')[0]}"
