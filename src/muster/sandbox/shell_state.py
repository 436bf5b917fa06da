"""State of the main shell that a snapshot remembers, as bash source: variables, functions, options, traps, directory.

    capture ─► the shell writes it to descriptor 43 ─► captured ─► Snapshot.shell_state ─► restore ─► restored?

Law: a state is the model's word. One that is too large, or on which a shell ends or hangs, is left out.
"""

from __future__ import annotations

import asyncio
import shlex

from muster.sandbox.command import Answer, within
from muster.sandbox.config import MIB

_TIMEOUT_S = 5.0
_CAP_BYTES = MIB


def capture(first: str, *, aliases: bool = False) -> str:
    """Bash source that writes the state, after the command `first`."""
    listed = ("declare -p", "declare -f", *(["alias -p"] if aliases else []), "shopt -p", "trap -p")
    # options come last: with `errexit` on, the line before must not fail
    return (
        f"{{ {first}; {' '.join(f'builtin {told};' for told in listed)} builtin printf 'builtin '; builtin umask -p; "
        "builtin printf 'builtin cd -- %q\\n' \"$PWD\"; builtin set +o; } >&43 2>/dev/null"
    )


def restore(state: str) -> str:
    return f"builtin eval {shlex.quote(state)} >/dev/null 2>&1"


async def captured(answer: asyncio.Future[Answer | None]) -> str:
    """The state; empty when the shell cannot tell, since it was left in a broken one."""
    heard = await _soon(answer)
    return heard.payload.decode(errors="replace") if heard is not None and len(heard.payload) <= _CAP_BYTES else ""


async def restored(answer: asyncio.Future[Answer | None]) -> bool:
    """Whether the shell lives on."""
    return await _soon(answer) is not None


async def _soon(answer: asyncio.Future[Answer | None]) -> Answer | None:
    return answer.result() if await within(asyncio.shield(answer), _TIMEOUT_S) else None
