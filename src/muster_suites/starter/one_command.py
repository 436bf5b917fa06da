"""Families that one command solves. Instructions name every file in full; nothing has to be guessed."""

from __future__ import annotations

from muster_suites.starter.family import TreeChange, starter_family
from muster_suites.words import Words


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _make_directory(words: Words) -> TreeChange:
    name, other = words.word(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use mkdir to create the directory {name}.",
        before=before,
        after={**before, name: None},
        solution=f"mkdir {name}",
    )


def _make_path(words: Words) -> TreeChange:
    outer, inner, other = words.word(), words.word(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use mkdir -p to create the directory {outer}/{inner}.",
        before=before,
        after={**before, outer: None, f"{outer}/{inner}": None},
        solution=f"mkdir -p {outer}/{inner}",
    )


def _make_file(words: Words) -> TreeChange:
    name, other = words.files(2)
    before = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use touch to create the empty file {name}.",
        before=before,
        after={**before, name: ""},
        solution=f"touch {name}",
    )


def _delete_file(words: Words) -> TreeChange:
    name, other = words.files(2)
    after = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Delete {name}.",
        before={**after, name: _text(words.lines(1, 2))},
        after=after,
        solution=f"rm {name}",
    )


def _delete_directory(words: Words) -> TreeChange:
    name, other = words.word(), words.file()
    after = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use rm -r to delete the directory {name}.",
        before={**after, name: None, f"{name}/{words.file()}": _text(words.lines(1, 2))},
        after=after,
        solution=f"rm -r {name}",
    )


def _rename_file(words: Words) -> TreeChange:
    old, new, other = words.files(3)
    kept = {other: _text(words.lines(1, 2))}
    content = _text(words.lines(1, 3))
    return TreeChange(
        instruction=f"Rename {old} to {new}.",
        before={**kept, old: content},
        after={**kept, new: content},
        solution=f"mv {old} {new}",
    )


def _copy_file(words: Words) -> TreeChange:
    source, target = words.files(2)
    before = {source: _text(words.lines(1, 3))}
    return TreeChange(
        instruction=f"Use cp to copy {source} to {target}.",
        before=before,
        after={**before, target: before[source]},
        solution=f"cp {source} {target}",
    )


def _move_into(words: Words) -> TreeChange:
    name, folder = words.file(), words.word()
    content = _text(words.lines(1, 3))
    return TreeChange(
        instruction=f"Use mv to move {name} to {folder}/{name}.",
        before={folder: None, name: content},
        after={folder: None, f"{folder}/{name}": content},
        solution=f"mv {name} {folder}/",
    )


def _write_word(words: Words) -> TreeChange:
    word, name, other = words.word(), words.file(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use echo to write the word {word} to {name}.",
        before=before,
        after={**before, name: f"{word}\n"},
        solution=f"echo {word} > {name}",
    )


def _append_word(words: Words) -> TreeChange:
    word, name = words.word(), words.file()
    lines = words.lines(1, 3)
    return TreeChange(
        instruction=f"Use echo to add the line {word} to {name}.",
        before={name: _text(lines)},
        after={name: _text([*lines, word])},
        solution=f"echo {word} >> {name}",
    )


def _first_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    lines = words.lines(4, 7)
    count = words.number(2, 3)
    before = {source: _text(lines)}
    return TreeChange(
        instruction=f"Use head -n {count} to write the first {count} lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[:count])},
        solution=f"head -n {count} {source} > {target}",
    )


def _last_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    lines = words.lines(4, 7)
    count = words.number(2, 3)
    before = {source: _text(lines)}
    return TreeChange(
        instruction=f"Use tail -n {count} to write the last {count} lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[-count:])},
        solution=f"tail -n {count} {source} > {target}",
    )


def _count_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    lines = words.lines(3, 9)
    before = {source: _text(lines)}
    return TreeChange(
        instruction=f"Use wc -l to write the number of lines of {source} to {target}.",
        before=before,
        after={**before, target: f"{len(lines)}\n"},
        solution=f"wc -l < {source} > {target}",
    )


def _sort_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    lines = sorted(words.lines(3, 6), reverse=True)
    before = {source: _text(lines)}
    return TreeChange(
        instruction=f"Use sort to write the sorted lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[::-1])},
        solution=f"sort {source} > {target}",
    )


def _join_files(words: Words) -> TreeChange:
    first, second, target = words.files(3)
    before = {first: _text(words.lines(1, 3)), second: _text(words.lines(1, 3))}
    return TreeChange(
        instruction=f"Use cat to join {first} and {second} into {target}.",
        before=before,
        after={**before, target: before[first] + before[second]},
        solution=f"cat {first} {second} > {target}",
    )


def _matching_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    key, *rest = words.lines(5, 7)
    matching = [f"{word} {key}" for word in rest[:2]]
    before = {source: _text([matching[0], rest[2], matching[1], *rest[3:]])}
    return TreeChange(
        instruction=f"Use grep {key} to write the matching lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(matching)},
        solution=f"grep {key} {source} > {target}",
    )


def _distinct_lines(words: Words) -> TreeChange:
    source, target = words.files(2)
    lines = words.lines(3, 5)
    before = {source: _text([lines[0], lines[0], *lines[1:], lines[-1]])}
    return TreeChange(
        instruction=f"Use uniq to write the distinct lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines)},
        solution=f"uniq {source} > {target}",
    )


def _delete_empty_directory(words: Words) -> TreeChange:
    name, other = words.word(), words.file()
    after = {other: _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Use rmdir to delete the empty directory {name}.",
        before={**after, name: None},
        after=after,
        solution=f"rmdir {name}",
    )


def _list_directory(words: Words) -> TreeChange:
    folder, target = words.word(), words.file()
    inside = sorted(words.files(words.number(2, 4)))
    before: dict[str, str | None] = {folder: None}
    before |= {f"{folder}/{name}": _text(words.lines(1, 1)) for name in inside}
    return TreeChange(
        instruction=f"Use ls to write the names in the directory {folder} to {target}.",
        before=before,
        after={**before, target: _text(inside)},
        solution=f"ls {folder} > {target}",
    )


def _make_executable(words: Words) -> TreeChange:
    name = f"{words.word()}.sh"
    before = {name: f"echo {words.word()}\n", words.file(): _text(words.lines(1, 2))}
    return TreeChange(
        instruction=f"Make {name} executable.",
        before=before,
        after=before,
        solution=f"chmod +x {name}",
        executable=(name,),
    )


ONE_COMMAND = (
    starter_family("make-directory", _make_directory),
    starter_family("make-path", _make_path),
    starter_family("make-file", _make_file),
    starter_family("delete-file", _delete_file),
    starter_family("delete-directory", _delete_directory),
    starter_family("rename-file", _rename_file),
    starter_family("copy-file", _copy_file),
    starter_family("move-into", _move_into),
    starter_family("write-word", _write_word),
    starter_family("append-word", _append_word),
    starter_family("first-lines", _first_lines),
    starter_family("last-lines", _last_lines),
    starter_family("count-lines", _count_lines),
    starter_family("sort-lines", _sort_lines),
    starter_family("join-files", _join_files),
    starter_family("matching-lines", _matching_lines),
    starter_family("distinct-lines", _distinct_lines),
    starter_family("delete-empty-directory", _delete_empty_directory),
    starter_family("list-directory", _list_directory),
    starter_family("make-executable", _make_executable),
)
