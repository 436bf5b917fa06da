"""The fixed messages that open a trajectory, as data.

    STARTER_PROMPT     few-shot, for a model too small to follow a description of the protocol
    ZERO_SHOT_PROMPT   the protocol in words, for chat models

Law: shots use the words of `muster_suites.words.SHOTS` alone, so that none of them is a generated task. Every
group pays for these tokens: keep them few. The protocol itself is `rollout.actions.Fenced`.

The shots were chosen by measurement. The starter model copies the nearest shot, so each shows another command;
the two relays teach it to act on what it reads, and stand apart because examples near the end weigh most.
"""

from __future__ import annotations

from typing import Final, TypedDict


class Message(TypedDict):
    role: str
    content: str


def _shot(*contents: str) -> tuple[Message, ...]:
    """Example conversation: what the user says and which command the assistant answers with, in turn."""
    return tuple(
        Message(role="assistant", content=f"```bash\n{content}\n```")
        if index % 2
        else Message(role="user", content=content)
        for index, content in enumerate(contents)
    )


STARTER_PROMPT: Final = (
    Message(role="system", content="Reply with one bash command."),
    *_shot("Do what ring.txt says.", "cat ring.txt", "Use rm to delete hill.txt.", "rm hill.txt"),
    *_shot("Use mv to rename cup.txt to door.txt.", "mv cup.txt door.txt"),
    *_shot("Use echo to write the word snow to duck.txt.", "echo snow > duck.txt"),
    *_shot("Use echo to add the line sun to sand.txt.", "echo sun >> sand.txt"),
    *_shot("Do what lake.txt says.", "cat lake.txt", "Use mkdir to create the directory duck.", "mkdir duck"),
    *_shot("Use head -n 3 to write the first 3 lines of milk.txt to cake.txt.", "head -n 3 milk.txt > cake.txt"),
    *_shot("Use ls to write the names in the directory boat to milk.txt.", "ls boat > milk.txt"),
    *_shot("Use wc -l to write the number of lines of boat.txt to star.txt.", "wc -l < boat.txt > star.txt"),
)

ZERO_SHOT_PROMPT: Final = (
    Message(
        role="system",
        content=(
            "You solve tasks in a Linux shell. Reply with exactly one fenced block per turn:\n"
            "```bash\n<commands>\n```\n"
            "The commands run in a persistent shell and their output is the next message. There is no terminal: "
            "nothing interactive works, and output is cut in the middle when it is long. Check your work, then "
            "reply with the single word DONE and no block. Only the final state of the files is graded."
        ),
    ),
)
