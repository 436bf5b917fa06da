"""Families in which the task must be found first: a file says what to do, and may point to another one.

No single command solves them without knowing what the file says, so the policy has to act on what it observes.
"""

from __future__ import annotations

from muster_suites.starter.family import TreeChange, starter_family
from muster_suites.words import Words


def _relay_make_directory(words: Words) -> TreeChange:
    note, name = words.file(), words.word()
    before = {note: f"Use mkdir to create the directory {name}.\n"}
    return TreeChange(
        instruction=f"Do what {note} says.",
        before=before,
        after={**before, name: None},
        solution=f"mkdir {name}",
    )


def _relay_make_file(words: Words) -> TreeChange:
    note, name = words.files(2)
    before = {note: f"Use touch to create the empty file {name}.\n"}
    return TreeChange(
        instruction=f"Do what {note} says.",
        before=before,
        after={**before, name: ""},
        solution=f"touch {name}",
    )


def _relay_delete(words: Words) -> TreeChange:
    note, name, other = words.files(3)
    after = {note: f"Use rm to delete {name}.\n", other: f"{words.word()}\n"}
    return TreeChange(
        instruction=f"Do what {note} says.",
        before={**after, name: f"{words.word()}\n"},
        after=after,
        solution=f"rm {name}",
    )


def _relay_rename(words: Words) -> TreeChange:
    note, old, new = words.files(3)
    kept = {note: f"Use mv to rename {old} to {new}.\n"}
    content = f"{words.word()}\n"
    return TreeChange(
        instruction=f"Do what {note} says.",
        before={**kept, old: content},
        after={**kept, new: content},
        solution=f"mv {old} {new}",
    )


def _relay_twice(words: Words) -> TreeChange:
    note, next_note, name, other = words.files(4)
    after = {
        note: f"Do what {next_note} says.\n",
        next_note: f"Use rm to delete {name}.\n",
        other: f"{words.word()}\n",
    }
    return TreeChange(
        instruction=f"Do what {note} says.",
        before={**after, name: f"{words.word()}\n"},
        after=after,
        solution=f"rm {name}",
    )


RELAYED = (
    starter_family("relay-make-directory", _relay_make_directory, max_turns=2),
    starter_family("relay-make-file", _relay_make_file, max_turns=2),
    starter_family("relay-delete", _relay_delete, max_turns=2),
    starter_family("relay-rename", _relay_rename, max_turns=2),
    starter_family("relay-twice", _relay_twice, max_turns=3),
)
