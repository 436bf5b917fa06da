"""The doctor: does this machine have what a run needs, and what is to be done if not?

    machine (tries things) ─► plain values ─► judge (pure) ─► Check ─► one line, and one of advice

Law: looking and judging are apart, so that every verdict is tested without a broken machine. What can be tried is
tried, not inferred: a sandbox is started, a limit is set, a matrix is multiplied.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from muster.app.doctor.judge import Check, Status
from muster.app.doctor.machine import look
from muster.sandbox.config import SandboxConfig

__all__ = ["Check", "Status", "examine"]

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def examine(console: Console, sandbox: SandboxConfig | None = None) -> bool:
    """Print one line for each check. True when nothing failed; warnings pass.

    Leftovers of killed runs in the sandboxes' state directory are removed on the way.
    """
    failed = 0
    for check in look(sandbox or SandboxConfig()):
        console.print(line(check), soft_wrap=True)
        failed += check.status is Status.FAIL
    verdict = f"not ready: mend the {failed} marked fail" if failed else "ready: muster train"
    console.print(Text(verdict, style="bold red" if failed else "bold green"))
    return not failed


def line(check: Check) -> Text:
    """`ok    torch           2.13.0`, and the advice on a line of its own."""
    text = Text.assemble((f"{check.status:<6}", _STYLES[check.status]), f"{check.name:<15}", check.detail)
    return text.append(f"\n{'':21}→ {check.advice}", style="dim") if check.advice else text
