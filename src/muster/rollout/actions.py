"""Actions: what a reply asks for, and how an answer is put to the model.

Law: pure text in, pure data out. A reply that cannot be understood is an observation for the model, not an
error of ours.

    reply ─parse─► Commands | Done | Malformed        results ─observe─► messages
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from muster.rollout.renderer import Message
from muster.sandbox.port import Result


@dataclass(frozen=True, slots=True)
class Commands:
    """Shell commands to run, in order. Most formats give one."""

    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The model says that it has finished."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Malformed reply, neither a command nor an end; `advice` is shown to the model."""

    advice: str


Action = Commands | Done | Malformed
FormatName = Literal["fenced", "tool_call"]


class ActionFormat(Protocol):
    def parse(self, reply: str) -> Action: ...

    def observe(self, observations: Sequence[str]) -> list[Message]: ...


_FENCE = re.compile(r"```(?:bash|sh|shell)?[ \t]*\n(.*?)(?:\n)?```", re.DOTALL)
_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class Fenced:
    """One fenced block a turn; a reply without one that says DONE ends the episode. For any chat model."""

    def parse(self, reply: str) -> Action:
        match = _FENCE.search(reply)
        if match and match.group(1).strip():
            return Commands((match.group(1),))
        if "```" not in reply and re.search(r"\bDONE\b", reply):
            return Done()
        return Malformed("No command found. Reply with one ```bash block, or DONE when finished.")

    def observe(self, observations: Sequence[str]) -> list[Message]:
        return [{"role": "user", "content": "\n".join(observations)}]


class ToolCall:
    """`<tool_call>{"name": "bash", "arguments": {"command": …}}</tool_call>`; a reply without a call ends it."""

    def parse(self, reply: str) -> Action:
        calls = _TOOL_CALL.findall(reply)
        if not calls:
            return Malformed("The tool call is not closed.") if "<tool_call>" in reply else Done()
        commands: list[str] = []
        for call in calls:
            try:
                body = json.loads(call)
                command = body["arguments"]["command"]
            except (ValueError, KeyError, TypeError):
                return Malformed('A tool call is {"name": "bash", "arguments": {"command": "..."}}.')
            if body.get("name") != "bash" or not isinstance(command, str):
                return Malformed("The only tool is bash, with one string argument: command.")
            commands.append(command)
        return Commands(tuple(commands))

    def observe(self, observations: Sequence[str]) -> list[Message]:
        return [{"role": "tool", "content": o} for o in observations]


def action_format(name: FormatName) -> ActionFormat:
    return Fenced() if name == "fenced" else ToolCall()


def describe(result: Result, *, timeout_s: float, limit_chars: int) -> str:
    """Observation that the model is shown of a command: output with head and tail kept, then what was unusual."""
    text = result.output.rstrip("\n")
    if len(text) > limit_chars:
        half = limit_chars // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters omitted ...]\n{text[-half:]}"
    notes: list[str] = []
    if result.silent:
        notes.append(f"[stopped: no output for {timeout_s:g} s]")
    elif result.timed_out:
        notes.append(f"[timed out after {timeout_s:g} s]")
    if result.out_of_memory:
        notes.append("[out of memory]")
    if result.shell_restarted:
        notes.append("[the shell was restarted]")
    if result.exit_code:
        notes.append(f"exit code {result.exit_code}")
    return "\n".join([text or "(no output)", *notes])
