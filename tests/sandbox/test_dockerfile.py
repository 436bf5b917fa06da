from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.sandbox.dockerfile import Copy, MakeDirectory, Run, parse

TEXT = """
# syntax=docker/dockerfile:1
ARG BASE=3.11
FROM python:${BASE}-slim AS main
ARG NAME=world
ENV GREETING="hello $NAME" PLAIN=x\\ y
ENV OLD the old form
WORKDIR /app
WORKDIR sub
COPY --chmod=755 a.sh b/ ${NAME:-x}/
COPY ["with space", "/usr/local/bin/"]
RUN echo one && \\
    # a comment between
    echo two
RUN ["ls", "a b"]
USER root
LABEL a=b
CMD ["bash"]
"""


def test_each_instruction_becomes_what_is_to_be_done() -> None:
    recipe = parse(TEXT)
    env = {"GREETING": "hello world", "PLAIN": "x y", "OLD": "the old form"}
    arguments = {"BASE": "3.11", "NAME": "world"}
    assert recipe.steps == (
        MakeDirectory(path="/app"),
        MakeDirectory(path="/app/sub"),
        Copy(line=10, sources=("a.sh", "b/"), target="/app/sub/world/", mode=0o755),
        Copy(line=11, sources=("with space",), target="/usr/local/bin/"),
        Run(line=12, command="echo one && echo two", env=arguments | env, workdir="/app/sub"),
        Run(line=15, command="ls 'a b'", env=arguments | env, workdir="/app/sub"),
    )
    assert recipe.env == env
    assert recipe.workdir == "/app/sub"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN true", "Dockerfile:1: RUN: the first instruction must be FROM"),
        ("FROM a\n\nVOLUME /x", "Dockerfile:3: VOLUME: not supported"),
        ("FROM a\nFROM b", "Dockerfile:2: FROM: only one build stage"),
        ("FROM a\nCOPY --from=x a b", "Dockerfile:2: COPY: --from=x is not supported"),
        ("FROM a\nCOPY a", "Dockerfile:2: COPY: needs at least one source"),
        ("FROM a\nCOPY a b c", "Dockerfile:2: COPY: several sources need a target"),
        ("FROM a\nRUN --mount=type=cache true", "Dockerfile:2: RUN: options"),
        ("FROM a\nRUN cat <<EOF\nx\nEOF", "Dockerfile:2: RUN: options and here-documents"),
        ("FROM a\nUSER nobody", "Dockerfile:2: USER: only USER root"),
        ("FROM a\nENV A=1 B", "Dockerfile:2: ENV: 'B' is not KEY=value"),
        ("FROM a\nENV A='1", "Dockerfile:2: ENV: No closing quotation"),
        ('FROM a\nCOPY ["a"', "Dockerfile:2: COPY: needs at least one source"),
    ],
)
def test_what_is_not_supported_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_a_test_in_brackets_is_a_shell_command() -> None:
    (step,) = parse("FROM a\nRUN [ -d /app ] || true").steps
    assert isinstance(step, Run)
    assert step.command == "[ -d /app ] || true"


@given(st.text(alphabet="FROM RUNCOPYENV\n\\$={}'\"[]/a.", max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(TaskError):
        parse("FROM a\n" + text)
