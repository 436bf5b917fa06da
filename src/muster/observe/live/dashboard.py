"""The live view of a run: a frame that redraws itself on a terminal, one log line a step elsewhere.

Law: it only looks. Nothing here is awaited and nothing is decided; a view that is off changes no run.

    loops ─RunStatus─► update ─► History.refresh ─► frame ─► rich.Live (terminal)
                                              └──► one line a step (log file, pipe)
"""

from __future__ import annotations

import io
from types import TracebackType

from rich.console import Console
from rich.live import Live

from muster import clock
from muster.journal import Journal, StepRow
from muster.observe import words
from muster.observe.live.frame import frame
from muster.observe.live.history import History
from muster.observe.palette import name
from muster.orchestrator.status import RunStatus


class Dashboard:
    """Live view of a run on a terminal.

    Example: `with Dashboard() as view: view.update(status, journal)`, about twice a second.

    On a console that is no terminal it prints what `PlainLog` prints.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._history = History()
        self._plain = None if self._console.is_terminal else PlainLog(self._console)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> Dashboard:
        if self._plain is None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain is None:
            self._live.stop()

    def update(self, status: RunStatus, journal: Journal) -> None:
        """Draw this status over what the journal holds."""
        if self._plain is not None:
            self._plain.update(status, journal)
            return
        now = clock.now()
        self._history.refresh(journal, now, _devices(status))
        width = self._console.width
        self._live.update(frame(status, self._history, now=now, width=width), refresh=True)


class PlainLog:
    """One line for each step that ended, with the key figures; one for each new notice and evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._history = History()
        self._notice = ""
        self._evaluated: float | None = None

    def update(self, status: RunStatus, journal: Journal) -> None:
        self._history.refresh(journal, clock.now(), ())
        if status.notice and status.notice != self._notice:
            self._print(f"notice  {status.notice}")
        self._notice = status.notice
        for step in self._history.new_steps:
            self._print(step_line(step, status, self._history))
        evaluation = self._history.last_evaluation
        if evaluation is not None and evaluation.started != self._evaluated:
            self._evaluated = evaluation.started
            self._print(
                f"eval    version {evaluation.version.number}  {words.percent(evaluation.pass_rate)}"
                f" [{100 * evaluation.low:.1f}, {100 * evaluation.high:.1f}]"
                f"  {evaluation.passed} of {evaluation.graded} graded"
            )

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def step_line(step: StepRow, status: RunStatus, history: History) -> str:
    """One step in one line: reward, TTB with its largest part, the trainer's wait, freshness, ETA."""
    reward, lag = (dict(history.series[key]).get(step.step) for key in ("reward", "lag_max"))
    parts = [f"step {step.step + 1:>3}/{status.steps}", f"reward {words.number(reward)}"]
    batch = next((b for b in history.batches if b.step == step.step), None)
    if batch is not None:
        largest = max(batch.parts, key=lambda s: batch.parts[s], default=None)
        cause = f" ({name(largest)} {words.seconds(batch.parts[largest])})" if largest else ""
        parts.append(f"ttb {words.seconds(batch.ttb_s)}{cause}")
        parts.append(f"trainer waited {words.seconds(batch.trainer_wait_s)}")
    parts.append(f"trained in {words.seconds(step.ended - step.started)}")
    parts.append(f"lag {words.number(lag)}")
    parts += [f"{key} {words.number(step.metrics.get(key))}" for key in ("k3", "ess")]
    parts.append(f"ETA {words.clock(status.eta_s)}")
    return "  ".join(parts)


def capture(status: RunStatus, journal: Journal, *, width: int = 110, now: float | None = None) -> str:
    """One frame as plain text, for documents and tests. `now` defaults to the clock."""
    at = clock.now() if now is None else now
    history = History()
    history.refresh(journal, at, _devices(status))
    console = Console(file=io.StringIO(), width=width, record=True, color_system=None, force_terminal=False)
    console.print(frame(status, history, now=at, width=width, colour=False))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


def _devices(status: RunStatus) -> tuple[str, ...]:
    return (*(e.replica for e in status.engines), "trainer")
