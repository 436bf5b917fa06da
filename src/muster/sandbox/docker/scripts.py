"""The bash programs that run in a container. Law: text alone; who sends it and when is `shell`'s.

    script NUL ─► fd 42 ┐                              ┌ fd 41 (stdout frames) ─► output … NUL token
                        ├ while read: eval; keep $? ───┤
                        ┘                              └ fd 43 (stderr frames) ─► payload NUL token code

`SUPERVISOR` is PID 1 of the container: no signal from within can end it, it reaps orphans, and it can signal whatever
runs there without a new process, also when the limit of processes is reached.

A session is a user's shell, interactive but without a terminal: SIGINT ends what it runs, loops of builtins included,
and it reads on. Its scripts come through PROMPT_COMMAND, which bash evaluates without the chatter of job control.
The descriptors are not 61 to 63, which process substitution takes and closes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from muster.sandbox.shell_state import capture

_BASH = ("/bin/bash", "--noprofile", "--norc", "-c")
_FILES = "exec 41>&1 42<&0 43>&2 </dev/null >/dev/null 2>&1"
_READ = 'while IFS= builtin read -r -d "" -u 42 MUSTER; do builtin eval "$MUSTER"; MUSTER_CODE=$?; done'

# muster_signal SIGNAL TICKS LAST SPARED: signal what began after clock tick TICKS (in that tick: has a process id over
# LAST), but for the sessions in SPARED and what descends from them. Fields as in proc(5).
_KILL = """muster_signal() {
  local stat text pid up; local -A parent=() session=() start=(); local -a field
  for stat in /proc/[0-9]*/stat; do
    text=; IFS= read -r -d '' text <"$stat"
    pid=${stat//[!0-9]/}; field=(${text##*) })
    [[ ${field[19]} ]] && parent[$pid]=${field[1]} session[$pid]=${field[3]} start[$pid]=${field[19]}
  done
  for pid in "${!parent[@]}"; do
    ((pid == 1 || start[$pid] < $2 || (start[$pid] == $2 && pid <= $3))) && continue
    [[ " $4 " == *" ${session[$pid]} "* ]] && continue
    for ((up = pid; up > 1; up = ${parent[$up]:-0})); do [[ " $4 " == *" $up "* ]] && continue 2; done
    kill -"$1" "$pid"
  done
}
# killed one by one, a fork bomb fills each gap at once: first nothing of it may run
muster_kill() {
  if [[ $1 == KILL ]]; then for _ in 1 2 3; do muster_signal STOP "${@:2}"; done; fi
  muster_signal "$@"
}"""

SUPERVISOR = (*_BASH, f"trap '' HUP INT QUIT TERM; {_FILES}; {_KILL}; {_READ}", "muster")
_SESSION = f'{_FILES}; builtin cd -- "$1"; PROMPT_COMMAND=$2 exec "$BASH" --noprofile --norc --noediting -i'
_SERVICE = 'IFS= read -r _; echo $$; exec "$@" </dev/null 2>&1'

PREPARE = (
    "PS1= PS2= USER=${USER:-\\\\u}; USER=${USER@P}; builtin export USER; builtin export -n PROMPT_COMMAND; "
    "builtin unset HISTFILE MAILCHECK; builtin set +H -m"
)
"""The first script of a session: quiet, and no state of an interactive shell that commands could notice."""

BEGIN = (
    "IFS=' ' builtin read -r MUSTER _ </proc/uptime; IFS=' ' builtin read -r _ _ _ _ MUSTER_LAST </proc/loadavg; "
    'builtin printf "\\0begin %s %s\\n" "$MUSTER" "$MUSTER_LAST" >&43'
)
"""Says when a command begins; see `Moment`."""

CAPTURE = capture("builtin unset MUSTER MUSTER_LAST MUSTER_CODE", aliases=True)
"""Writes the state of a shell as bash source to descriptor 43."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Moment at which a command began: clock ticks since boot, and the last process id given out before it."""

    ticks: int = 0
    last_pid: int = 0


def at_rest(shell: int) -> str:
    """For the supervisor: fails unless nothing runs but it and `shell`, which holds no file open, and nothing is in
    shared memory. Globs alone: a process of its own would be counted."""
    return (
        "muster_rest() { local -a all=(/proc/[0-9]*); ((${#all[@]} == 2)) || return 1; local fd; "
        f"for fd in /proc/{shell}/fd/*; do case ${{fd##*/}} in 0 | 1 | 2 | 41 | 42 | 43 | 255) ;; *) return 1 ;; esac; "
        "done; for fd in /dev/shm/* /dev/shm/.[!.]*; do [[ -e $fd ]] && return 1; done; return 0; }; muster_rest"
    )


def session(workdir: str) -> tuple[str, ...]:
    """The program of a session."""
    return (*_BASH, _SESSION, "bash", workdir, f"MUSTER_CODE=$?; {_READ}")


def service(command: Iterable[str]) -> tuple[str, ...]:
    """A program that waits for one line, says its process id in another, and becomes `command`."""
    return (*_BASH, _SERVICE, "bash", *command)


def run(command: str) -> str:
    """A command of the user: no input, our descriptors closed."""
    return f"builtin eval {shlex.quote(command.replace(chr(0), ''))} </dev/null >&41 2>&41 41>&- 42<&- 43>&-"


def answer(token: str) -> str:
    """Ends both streams."""
    return f'builtin printf "\\0%s %d\\n" {token} "$MUSTER_CODE" >&43; builtin printf "\\0%s\\n" {token} >&41'


def kill(signal: str, since: Moment, *, shell: int = 0, spared: Iterable[int] = ()) -> str:
    """For the supervisor: signal what began after `since`, and move the session's own `shell` on.

    The shell is stopped meanwhile: it wakes up interrupted, and does not begin what comes after a killed process.
    """
    script = f"muster_kill {signal} {since.ticks} {since.last_pid} '{' '.join(map(str, spared))}'"
    if not shell:
        return script
    return f"kill -STOP {shell}; {script}; kill -INT {shell}; kill -CONT {shell}"


def kill_shell(pid: int, signal: str = "KILL") -> str:
    """For the supervisor: signal one process."""
    return f"kill -{signal} {pid}"
