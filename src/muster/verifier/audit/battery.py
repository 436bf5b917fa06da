"""The battery of exploits: hostile scripts that ship with the package. Law: data; read once, run by others.

    exploits/NAME.sh    # kind: what it belongs to        several scripts may be of one kind
                        # what: one sentence
                        bash, run as the agent in the unsolved state, after exploits/prelude.sh

A script knows the instruction and the working directory, as the agent does, and nothing of the task's tests.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from muster.errors import UserError

_FOLDER = files("muster.verifier.audit") / "exploits"
_HEADER = re.compile(r"# kind: (?P<kind>[a-z_]+)\n# what: (?P<what>[^\n]+[.])\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """Exploit that a verifier must stand.

    Example: `Exploit(name="reward-file", kind="reward_channel", what="Writes the reward.", script="echo 1 > …")`
    """

    name: str
    kind: str
    what: str
    script: str

    def command(self, *, instruction: str, workdir: str) -> str:
        """Bash source for the agent's shell."""
        known = f"INSTRUCTION={shlex.quote(instruction)} WORKDIR={shlex.quote(workdir)}\n"
        return f"{known}{_prelude()}\n{self.script}"


@cache
def battery() -> tuple[Exploit, ...]:
    """All exploits, by name."""
    named = {entry.name.removesuffix(".sh"): entry for entry in _FOLDER.iterdir() if entry.name.endswith(".sh")}
    return tuple(_parse(name, named[name].read_text("utf-8")) for name in sorted(named) if name != "prelude")


def chosen(names: Collection[str]) -> tuple[Exploit, ...]:
    """The named exploits; all when none is named. Raises `UserError` for a name that is not in the battery."""
    unknown = sorted(set(names) - {exploit.name for exploit in battery()})
    if unknown:
        raise UserError(f"--exploit {unknown[0]}: no such exploit; there are {', '.join(e.name for e in battery())}")
    return tuple(exploit for exploit in battery() if not names or exploit.name in names)


def digest(exploits: Sequence[Exploit], *, version: str) -> str:
    """Hex; changes with any script and with `version`, the code that runs them."""
    state = hashlib.sha256(f"{version}\0{_prelude()}".encode())
    for exploit in exploits:
        state.update(f"\0{exploit.name}\0{exploit.script}".encode())
    return state.hexdigest()[:16]


@cache
def _prelude() -> str:
    return (_FOLDER / "prelude.sh").read_text("utf-8")


def _parse(name: str, text: str) -> Exploit:
    header = _HEADER.match(text)
    assert header is not None, f"exploits/{name}.sh: begins with '# kind:' and '# what:'"
    return Exploit(name=name, kind=header["kind"], what=header["what"], script=text[header.end() :])
