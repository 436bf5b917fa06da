"""Real text of a replayed agent: a tokenizer of words and numbers, and the replies of a program.

    Program ─► turn t: thoughts, then a command ─► exactly `reply_tokens` ids ─► engine ─► ids ─► text ─► a real shell
                       └ echo t >> log; echo {1..n} (the observation); sha256sum (work); sleep (its time)

Law: pure and lossless: text is tokens and tokens are text, so that renderer, agent and engine do what they do in
production, and a plan of lengths becomes real text of exactly those lengths. Which turn is asked for is read from the
prompt, so that any replica, also one that never saw the session, continues it alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from muster.lab.collection.workload import Program
from muster.rollout.conversation import conversation
from muster.rollout.prompts import ZERO_SHOT_PROMPT
from muster.rollout.renderer import Message
from muster.types import Ints, Session, Version

Groups = tuple[tuple[Program, ...], ...]
"""[group][sibling]"""

STOP = "\x02"
_ROLES = {"system": "\x01", "user": "\x03", "assistant": "\x04"}
_NAMED, _COUNT, _WORDS = "```bash\necho", " > me; echo", " >> log; echo {1.."
_REST = "}; sha256sum log > sum; sleep"
_END, _SOLVED = "e-4\n```", "e-4; echo yes > answer\n```"
_SLEEP_UNIT_S = 1e-4  # what "e-4" says

LEAST_REPLY_TOKENS = 10
"""The first command of a program, and the stop token."""
FRAME_TOKENS = 3
"""Around an observation: its role, its end, and the assistant's role."""
LEAST_OBSERVATION_TOKENS = FRAME_TOKENS + 1

_LARGEST = 10_000_000  # numbers below it are one token, with or without a space before
_THOUGHTS = 1_000  # what is thought is made of numbers below it: short ids make short requests
_SESSION = re.compile(r"g(\d+)\.(\d+)(?:a\d+)?")


class WordTokenizer:
    """Ids in this order: roles and STOP, phrases, numbers, single characters. No table but the phrases."""

    def __init__(self) -> None:
        words = re.findall(r" ?[A-Za-z]+", ZERO_SHOT_PROMPT[0]["content"])
        phrases = [STOP, *_ROLES.values(), _NAMED, _COUNT, _WORDS, _REST, _END, _SOLVED, *words]
        self._phrases = list(dict.fromkeys(phrases))
        self._ids = {phrase: id for id, phrase in enumerate(self._phrases)}
        longest = sorted(self._phrases, key=len, reverse=True)
        # numbers first, since most of an observation is numbers; no phrase begins with one
        self._pieces = re.compile(rf"( ?)(0|[1-9]\d{{0,6}})|({'|'.join(map(re.escape, longest))})|(.)", re.DOTALL)
        self._numbers = len(self._phrases)
        self._characters = self._numbers + 2 * _LARGEST
        self.vocabulary = self._characters + 0x110000
        self.stop_tokens = (self._ids[STOP],)

    def encode(self, text: str) -> list[int]:
        return [self._id(*piece) for piece in self._pieces.findall(text)]

    def numbers(self, values: npt.NDArray[np.integer]) -> list[int]:
        """Ids of numbers with a space before each."""
        return (self._numbers + 1 + 2 * values).tolist()

    def encode_plain(self, text: str) -> list[int]:
        special = dict.fromkeys(map(ord, (STOP, *_ROLES.values())), "?")
        return self.encode(text.translate(special))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self._text, ids))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        text = "".join(f"{_ROLES[m['role']]}{m['content']}{STOP}" for m in messages)
        return text + (_ROLES["assistant"] if add_generation_prompt else "")

    def _id(self, space: str, number: str, phrase: str, character: str) -> int:
        """Of a piece: what it is not is empty."""
        if number:
            return self._numbers + 2 * int(number) + bool(space)
        return self._ids[phrase] if phrase else self._characters + ord(character)

    def _text(self, id: int) -> str:
        if id < self._numbers:
            return self._phrases[id]
        if id < self._characters:
            number, space = divmod(id - self._numbers, 2)
            return f"{' ' if space else ''}{number}"
        return chr(id - self._characters)


class Replies:
    """The policy of the emulated replicas: what each session says next. A `replies.Policy`.

    Example: `EmulatedEngine(config, name="r0", version=INITIAL, policy=Replies(groups))`
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._tokenizer = WordTokenizer()
        self._stop = self._tokenizer.stop_tokens[0]
        self._speaks = self._tokenizer.encode(_ROLES["assistant"])[0]
        self._opening = 2  # messages of the prompt, each with its STOP: system and user

    def __call__(self, tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        turn = (int(np.count_nonzero(tokens == self._stop)) - self._opening) // 2
        said = len(tokens) - 1 - int(np.flatnonzero(tokens == self._speaks)[-1])  # before it was aborted
        group, sibling = placed(session.id, len(self._groups))
        return reply(self._groups[group][sibling], turn, sibling, self._tokenizer)[said:]


def placed(session: str, groups: int) -> tuple[int, int]:
    """(group, sibling) of a session: the scheduler numbers groups in the order of its tasks."""
    match = _SESSION.fullmatch(session)
    assert match is not None, session
    return int(match[1]) % groups, int(match[2])


def reply(program: Program, turn: int, sibling: int, tokenizer: WordTokenizer) -> list[int]:
    """The ids of one turn: thoughts, as many as are needed, then the command."""
    spoken = [*tokenizer.encode(command(program, turn, sibling)), tokenizer.stop_tokens[0]]
    thoughts = program.turns[turn].reply_tokens - len(spoken)
    assert thoughts >= 0, f"a turn of {program.turns[turn].reply_tokens} tokens holds no command"
    drawn = np.random.default_rng([program.seed, turn]).integers(_THOUGHTS, size=thoughts)
    return [*tokenizer.numbers(drawn), *spoken]


def command(program: Program, turn: int, sibling: int) -> str:
    """The fenced command of a turn: leaves a trace, prints the observation, and takes the turn's time."""
    planned = program.turns[turn]
    me = f" {sibling}{_COUNT}" if turn == 0 else ""
    last = turn == len(program.turns) - 1
    end = _SOLVED if last and program.reward > 0 else _END
    words, units = planned.observation_tokens - FRAME_TOKENS, round(planned.tool_s / _SLEEP_UNIT_S)
    return f"{_NAMED}{me} {turn + 1}{_WORDS}{words}{_REST} {units}{end}"


def instruction(task: int, tokens: int, tokenizer: WordTokenizer) -> str:
    """A task's text, such that the whole prompt has `tokens` tokens, or as few as it can have."""
    stem = f"Task {task}."
    room = max(0, tokens - _prompt_tokens(stem, tokenizer))
    facts = np.random.default_rng([task, tokens]).integers(_THOUGHTS, size=room)
    return stem + "".join(f" {fact}" for fact in facts)


def least_prompt_tokens() -> int:
    """Tokens of the shortest prompt, for up to a thousand tasks."""
    return _prompt_tokens("Task 999.", WordTokenizer())


def _prompt_tokens(text: str, tokenizer: WordTokenizer) -> int:
    return len(tokenizer.encode(tokenizer.render(conversation("zero_shot", text), add_generation_prompt=True)))
