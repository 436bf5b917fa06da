"""Families that one command solves. Instructions name every file in full; nothing has to be guessed."""

from __future__ import annotations

from muster_suites.starter.family import Family, Instance
from muster_suites.starter.words import Words


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _make_directory(words: Words) -> Instance:
    name, other = words.word(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use mkdir to create the directory {name}.",
        before=before,
        after={**before, name: None},
        solution=f"mkdir {name}",
    )


def _make_path(words: Words) -> Instance:
    outer, inner, other = words.word(), words.word(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use mkdir -p to create the directory {outer}/{inner}.",
        before=before,
        after={**before, outer: None, f"{outer}/{inner}": None},
        solution=f"mkdir -p {outer}/{inner}",
    )


def _make_file(words: Words) -> Instance:
    name, other = words.files(2)
    before = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use touch to create the empty file {name}.",
        before=before,
        after={**before, name: ""},
        solution=f"touch {name}",
    )


def _delete_file(words: Words) -> Instance:
    name, other = words.files(2)
    after = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Delete {name}.",
        before={**after, name: _text(words.lines(1, 2))},
        after=after,
        solution=f"rm {name}",
    )


def _delete_directory(words: Words) -> Instance:
    name, other = words.word(), words.file()
    after = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use rm -r to delete the directory {name}.",
        before={**after, name: None, f"{name}/{words.file()}": _text(words.lines(1, 2))},
        after=after,
        solution=f"rm -r {name}",
    )


def _rename_file(words: Words) -> Instance:
    old, new, other = words.files(3)
    kept = {other: _text(words.lines(1, 2))}
    content = _text(words.lines(1, 3))
    return Instance(
        instruction=f"Rename {old} to {new}.",
        before={**kept, old: content},
        after={**kept, new: content},
        solution=f"mv {old} {new}",
    )


def _copy_file(words: Words) -> Instance:
    source, target = words.files(2)
    before = {source: _text(words.lines(1, 3))}
    return Instance(
        instruction=f"Use cp to copy {source} to {target}.",
        before=before,
        after={**before, target: before[source]},
        solution=f"cp {source} {target}",
    )


def _move_into(words: Words) -> Instance:
    name, folder = words.file(), words.word()
    content = _text(words.lines(1, 3))
    return Instance(
        instruction=f"Use mv to move {name} to {folder}/{name}.",
        before={folder: None, name: content},
        after={folder: None, f"{folder}/{name}": content},
        solution=f"mv {name} {folder}/",
    )


def _write_word(words: Words) -> Instance:
    word, name, other = words.word(), words.file(), words.file()
    before = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use echo to write the word {word} to {name}.",
        before=before,
        after={**before, name: f"{word}\n"},
        solution=f"echo {word} > {name}",
    )


def _append_word(words: Words) -> Instance:
    word, name = words.word(), words.file()
    lines = words.lines(1, 3)
    return Instance(
        instruction=f"Use echo to add the line {word} to {name}.",
        before={name: _text(lines)},
        after={name: _text([*lines, word])},
        solution=f"echo {word} >> {name}",
    )


def _first_lines(words: Words) -> Instance:
    source, target = words.files(2)
    lines = words.lines(4, 7)
    count = words.number(2, 3)
    before = {source: _text(lines)}
    return Instance(
        instruction=f"Use head -n {count} to write the first {count} lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[:count])},
        solution=f"head -n {count} {source} > {target}",
    )


def _last_lines(words: Words) -> Instance:
    source, target = words.files(2)
    lines = words.lines(4, 7)
    count = words.number(2, 3)
    before = {source: _text(lines)}
    return Instance(
        instruction=f"Use tail -n {count} to write the last {count} lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[-count:])},
        solution=f"tail -n {count} {source} > {target}",
    )


def _count_lines(words: Words) -> Instance:
    source, target = words.files(2)
    lines = words.lines(3, 9)
    before = {source: _text(lines)}
    return Instance(
        instruction=f"Use wc -l to write the number of lines of {source} to {target}.",
        before=before,
        after={**before, target: f"{len(lines)}\n"},
        solution=f"wc -l < {source} > {target}",
    )


def _sort_lines(words: Words) -> Instance:
    source, target = words.files(2)
    lines = sorted(words.lines(3, 6), reverse=True)
    before = {source: _text(lines)}
    return Instance(
        instruction=f"Use sort to write the sorted lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines[::-1])},
        solution=f"sort {source} > {target}",
    )


def _join_files(words: Words) -> Instance:
    first, second, target = words.files(3)
    before = {first: _text(words.lines(1, 3)), second: _text(words.lines(1, 3))}
    return Instance(
        instruction=f"Use cat to join {first} and {second} into {target}.",
        before=before,
        after={**before, target: before[first] + before[second]},
        solution=f"cat {first} {second} > {target}",
    )


def _matching_lines(words: Words) -> Instance:
    source, target = words.files(2)
    key, *rest = words.lines(5, 7)
    matching = [f"{word} {key}" for word in rest[:2]]
    before = {source: _text([matching[0], rest[2], matching[1], *rest[3:]])}
    return Instance(
        instruction=f"Use grep {key} to write the matching lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(matching)},
        solution=f"grep {key} {source} > {target}",
    )


def _distinct_lines(words: Words) -> Instance:
    source, target = words.files(2)
    lines = words.lines(3, 5)
    before = {source: _text([lines[0], lines[0], *lines[1:], lines[-1]])}
    return Instance(
        instruction=f"Use uniq to write the distinct lines of {source} to {target}.",
        before=before,
        after={**before, target: _text(lines)},
        solution=f"uniq {source} > {target}",
    )


def _delete_empty_directory(words: Words) -> Instance:
    name, other = words.word(), words.file()
    after = {other: _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Use rmdir to delete the empty directory {name}.",
        before={**after, name: None},
        after=after,
        solution=f"rmdir {name}",
    )


def _list_directory(words: Words) -> Instance:
    folder, target = words.word(), words.file()
    inside = sorted(words.files(words.number(2, 4)))
    before: dict[str, str | None] = {folder: None}
    before |= {f"{folder}/{name}": _text(words.lines(1, 1)) for name in inside}
    return Instance(
        instruction=f"Use ls to write the names in the directory {folder} to {target}.",
        before=before,
        after={**before, target: _text(inside)},
        solution=f"ls {folder} > {target}",
    )


def _make_executable(words: Words) -> Instance:
    name = f"{words.word()}.sh"
    before = {name: f"echo {words.word()}\n", words.file(): _text(words.lines(1, 2))}
    return Instance(
        instruction=f"Make {name} executable.",
        before=before,
        after=before,
        solution=f"chmod +x {name}",
        executable=(name,),
    )


ONE_COMMAND = (
    Family(name="make-directory", make=_make_directory),
    Family(name="make-path", make=_make_path),
    Family(name="make-file", make=_make_file),
    Family(name="delete-file", make=_delete_file),
    Family(name="delete-directory", make=_delete_directory),
    Family(name="rename-file", make=_rename_file),
    Family(name="copy-file", make=_copy_file),
    Family(name="move-into", make=_move_into),
    Family(name="write-word", make=_write_word),
    Family(name="append-word", make=_append_word),
    Family(name="first-lines", make=_first_lines),
    Family(name="last-lines", make=_last_lines),
    Family(name="count-lines", make=_count_lines),
    Family(name="sort-lines", make=_sort_lines),
    Family(name="join-files", make=_join_files),
    Family(name="matching-lines", make=_matching_lines),
    Family(name="distinct-lines", make=_distinct_lines),
    Family(name="delete-empty-directory", make=_delete_empty_directory),
    Family(name="list-directory", make=_list_directory),
    Family(name="make-executable", make=_make_executable),
)
