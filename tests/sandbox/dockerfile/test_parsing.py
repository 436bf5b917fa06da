from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.sandbox.dockerfile.parsing import Instruction, parse


def instructions(body: str) -> tuple[Instruction, ...]:
    return parse(f"FROM x\n{body}").stages[0].instructions


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "RUN one && \\\n    # a comment between\n\n    two\n# a comment\n  copy a \\\n b\n"
    assert [(it.line, it.name, it.value) for it in instructions(text)] == [
        (2, "RUN", "one &&     two"),
        (7, "COPY", "a  b"),
    ]


def test_only_the_end_of_a_line_can_be_continued() -> None:
    assert [it.value for it in instructions("RUN a\\\\\nRUN b \\  \nc\nRUN d\\n")] == ["a\\\\", "b c", "d\\n"]


def test_the_escape_directive_changes_the_character() -> None:
    file = parse("# syntax=docker/dockerfile:1\n# escape=`\nFROM x\nRUN a `\n b\\\nRUN c\n")
    assert file.escape == "`"
    assert [it.value for it in file.stages[0].instructions] == ["a  b\\", "c"]
    assert parse("FROM x\n# escape=`\nRUN a\n").escape == "\\"  # too late


def test_stages_have_names_and_the_arguments_before_the_first_are_apart() -> None:
    file = parse("ARG V=1\nFROM --platform=linux/amd64 a:$V as Build\nRUN x\nFROM b\nRUN y\n")
    assert [it.value for it in file.arguments] == ["V=1"]
    assert [(s.line, s.base, s.name, len(s.instructions)) for s in file.stages] == [
        (2, "a:$V", "build", 1),
        (4, "b", "", 1),
    ]


def test_flags_come_before_the_value() -> None:
    (it,) = instructions("COPY --from=a --link  --chmod=755 x --y /z\n")
    assert it.flags == (("from", "a"), ("link", ""), ("chmod", "755"))
    assert it.value == "x --y /z"


def test_here_documents_are_taken_whole() -> None:
    body = "RUN <<-EOF\n\techo one\n\t# kept\n\n\tCOPY is text\n\tEOF\nCOPY <<a <<'b' /x/\nA\\\na\n$B\nb\nRUN end\n"
    run, copy, end = instructions(body)
    assert run.documents[0].content == "echo one\n# kept\n\nCOPY is text\n"
    assert run.documents[0].raw == "\techo one\n\t# kept\n\n\tCOPY is text\n\tEOF"
    assert [(d.name, d.content, d.expand) for d in copy.documents] == [("a", "A\\\n", True), ("b", "$B\n", False)]
    assert (end.line, end.value) == (13, "end")


@pytest.mark.parametrize(
    "text", ["RUN cat <<< word\n", "RUN echo $((1 << 2))\n", "RUN echo 'a <<EOF b'\n", "ENV A=<<EOF\n"]
)
def test_not_everything_with_two_angles_is_a_here_document(text: str) -> None:
    assert instructions(text)[0].documents == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("RUN x\n", "Dockerfile:1: RUN: the first instruction must be FROM"),
        ("", "Dockerfile: has no FROM"),
        ("FROM\n", "Dockerfile:1: FROM: write"),
        ("FROM a b\n", "Dockerfile:1: FROM: write"),
        ("FROM --pull=x a\n", "Dockerfile:1: FROM: --pull"),
        ("FROM x\n\nRUNN x\n", "Dockerfile:3: RUNN: no such instruction"),
        ("FROM x\nRUN <<EOF\nx\n", "Dockerfile:2: RUN: the here-document <<EOF does not end"),
    ],
)
def test_what_is_wrong_names_the_line(text: str, where: str) -> None:
    with pytest.raises(TaskError, match=where):
        parse(text)


@given(st.text(alphabet=st.sampled_from("FROMRUNCOPYENVE \n\\\"'${}=:-<#[],x/`"), max_size=200))
def test_any_text_is_read_or_is_a_task_error(text: str) -> None:
    with contextlib.suppress(TaskError):
        parse(text)
        parse("FROM x\n" + text)
