from __future__ import annotations

import json

import pytest

from muster.rollout.actions import Commands, Done, Fenced, Malformed, ToolCall, describe
from muster.sandbox.port import Result


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("```bash\nls -l\n```", Commands(("ls -l",))),
        ("I will look.\n```sh\nls\npwd\n```\nDONE", Commands(("ls\npwd",))),
        ("```\nls\n```", Commands(("ls",))),
        ("All is DONE.", Done()),
        ("DONE", Done()),
    ],
)
def test_fenced_replies(reply: str, action: object) -> None:
    assert Fenced().parse(reply) == action


@pytest.mark.parametrize("reply", ["", "ls", "```bash\n\n```", "```bash\nls", "abandoned"])
def test_a_fenced_reply_without_command_or_end_is_told_so(reply: str) -> None:
    assert isinstance(Fenced().parse(reply), Malformed)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_tool_calls_run_in_order_and_a_reply_without_one_ends() -> None:
    assert ToolCall().parse(call("bash", command="a") + call("bash", command="b")) == Commands(("a", "b"))
    assert ToolCall().parse("finished") == Done()


@pytest.mark.parametrize(
    "reply", [call("python", command="x"), call("bash", cmd="x"), "<tool_call>{</tool_call>", "<tool_call>{}"]
)
def test_a_broken_tool_call_is_told_so(reply: str) -> None:
    assert isinstance(ToolCall().parse(reply), Malformed)


def test_an_observation_shows_what_was_unusual() -> None:
    result = Result(output="x\n", exit_code=3, duration_s=0.1, timed_out=True, shell_restarted=True)
    text = describe(result, timeout_s=5, limit_chars=100)
    assert text == "x\n[timed out after 5 s]\n[the shell was restarted]\nexit code 3"


def test_an_empty_output_is_said_and_a_long_one_keeps_head_and_tail() -> None:
    assert describe(Result(output="", exit_code=0, duration_s=0), timeout_s=1, limit_chars=100) == "(no output)"
    text = describe(Result(output="a" * 50 + "b" * 50, exit_code=0, duration_s=0), timeout_s=1, limit_chars=20)
    assert text.startswith("a" * 10)
    assert text.endswith("b" * 10)
    assert "80 characters omitted" in text
