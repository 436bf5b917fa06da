"""The commands. Law: parse, call one function of the package, print; no logic lives here.

Heavy parts are imported inside their command, so that `muster --help` starts at once. Importing a module of this
package registers its commands.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from rich.console import Console

from muster import extras
from muster.app.cli import bench, checks, engine, runs, tasks
from muster.app.cli.shared import app
from muster.errors import MusterError, UserError

__all__ = ["app", "bench", "checks", "engine", "main", "runs", "tasks"]


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, a failure one line and exit code 1.

    SIGTERM ends a command as Ctrl-C does: what it opened is closed.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except MusterError as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        remedy = extras.remedy(error)
        if remedy is None:
            raise
        _fail(remedy, 2)


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> NoReturn:
    plain = message.replace("[", "\\[")
    Console(stderr=True).print(f"[bold red]muster:[/] {plain}", highlight=False, soft_wrap=True)
    sys.exit(code)
