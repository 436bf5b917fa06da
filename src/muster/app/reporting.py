"""Reports of runs: what `muster report` prints and writes, and what a run leaves when it ends.

    run directory ─► journal ─► bounds + report ─► terminal, JSON, PNG figures, one HTML page

Law: reads journals, writes files; changes no run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from muster import extras
from muster.errors import UserError
from muster.journal import FILE_NAME, Journal
from muster.observe.bounds.fit import bounds_by_batch
from muster.observe.outcomes import Accounting, accounting
from muster.observe.render.page import write_page
from muster.observe.render.text import compare, render_text
from muster.observe.report import Report, build_report, to_json


def read_report(directory: Path) -> Report:
    """The report of one run as its journal stands. Raises `UserError` where there is no run."""
    with Journal.open(directory / FILE_NAME) as journal:
        bounds = {step: bounds.seconds for step, bounds in bounds_by_batch(journal).items()}
        return build_report(journal, bounds)


def report(
    runs: Sequence[Path],
    *,
    console: Console,
    html: Path | None = None,
    figures: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Print one run's report, or several runs side by side; files are of a single run."""
    if len(runs) > 1 and (html or figures or json_file):
        raise UserError("--html, --figures and --json take one run; name only one")
    reports = [read_report(run) for run in runs]
    if len(reports) > 1:
        console.print(compare(reports))
        return
    render_text(reports[0], console)
    if html:
        write_page(reports[0], html)
        console.print(f"page: {html}")
    if figures:
        console.print(f"figures: {', '.join(str(p) for p in _figures(reports[0], figures))}")
    if json_file:
        json_file.write_text(to_json(reports[0]), encoding="utf-8")


def account(run: Path, console: Console) -> bool:
    """Print what became of every trajectory of a run; True when nothing was lost or trained twice."""
    with Journal.open(run / FILE_NAME) as journal:
        counts = accounting(journal)
    console.print(_accounting_text(counts))
    return counts.clean


def leave_behind(directory: Path, console: Console) -> None:
    """At the end of a run: print its report, write its page and figures into its directory."""
    finished = read_report(directory)
    render_text(finished, console)
    write_page(finished, directory / "report.html")
    if importlib.util.find_spec("matplotlib") is None:
        console.print(f"no figures: matplotlib is missing, {extras.install('train')}")
    else:
        _figures(finished, directory / "figures")


def _figures(finished: Report, directory: Path) -> list[Path]:
    from muster.observe.render.timeline import write_figures  # an extra: a report in words does without it

    return write_figures(finished, directory)


def _accounting_text(counts: Accounting) -> str:
    ids = {
        "lost": counts.lost,
        "trained twice": counts.trained_twice,
        "launched twice": counts.launched_twice,
        "never launched": counts.never_launched,
    }
    return "\n".join(
        [
            f"launches {counts.launches}: graded {counts.graded}, ungraded {counts.ungraded}, "
            f"unfinished {counts.unfinished}",
            f"graded {counts.graded} = trained {counts.trained} + kept {counts.kept} + dropped {counts.dropped}",
            f"reused: {counts.reused}",
            *(f"{name}: {len(found)} {' '.join(found[:5])}".rstrip() for name, found in ids.items()),
        ]
    )
