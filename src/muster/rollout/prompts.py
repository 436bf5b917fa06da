"""prompts"""

from typing import TypedDict


class Message(TypedDict):
    role: str
    content: str


def _shot(*contents: str) -> tuple[Message, ...]:
    out = []
    for i, c in enumerate(contents):
        out.append(
            Message(role="user", content=c) if i % 2 == 0 else Message(role="assistant", content=f"```bash\n{c}\n```")
        )
    return tuple(out)


STARTER_PROMPT = (
    Message(role="system", content="Reply with one bash command."),
    *_shot("Create a directory named lake.", "mkdir lake"),
    *_shot("Rename cup.txt to door.txt.", "mv cup.txt door.txt"),
    *_shot("Show the first line of milk.txt.", "head -n 1 milk.txt"),
    *_shot("Copy corn.txt to bell.txt.", "cp corn.txt bell.txt"),
    *_shot("Write the word snow to duck.txt.", "echo snow > duck.txt"),
    *_shot(
        "The file ring.txt holds a file name. Show the file with that name.", "cat ring.txt", "hill.txt", "cat hill.txt"
    ),
    *_shot("Write the number of words of boat.txt to star.txt.", "wc -w < boat.txt > star.txt"),
    *_shot("Delete the file fish.txt.", "rm fish.txt"),
)
