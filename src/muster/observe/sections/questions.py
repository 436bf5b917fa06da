"""The report in words: the six questions, each answered in one sentence, then its figures.

Law: from a Report to plain text and tables, once, for every medium; a renderer adds layout and nothing else. A
part that is missing is said in its sentence, never skipped.
"""

from __future__ import annotations

from muster.observe import words
from muster.observe.report import Report
from muster.observe.sections.advice import advise, alarms
from muster.observe.sections.batches import freshness, numerics, readiness
from muster.observe.sections.ledgers import accounting, bias, device_hours
from muster.observe.sections.section import Section, Table
from muster.observe.sections.world import environments, evaluation, publication


def headline(report: Report) -> str:
    """One line: how far, how long, whether it ended by itself, and whether there is reason to doubt its figures."""
    done, planned = report.steps, report.planned_steps
    steps = f"{done} of {planned} steps" if planned else words.plural(done, "step")
    sessions = f" in {len(report.sessions)} sessions" if len(report.sessions) > 1 else ""
    last = report.sessions[-1] if report.sessions else None
    if last is None:
        state = "never started"
    elif last.complete:
        state = words.line(last.reason or "ended")
    else:
        state = "killed, or still going"
    found = alarms(report)
    doubts = f"; {words.plural(len(found), 'alarm')}" if found else ""
    return f"{steps}, {words.clock(report.wall_s)} of wall time{sessions}; {state}{doubts}"


def sections(report: Report) -> tuple[Section, ...]:
    """The six questions in order, then device-hours, bias and accounting."""
    return (
        readiness(report),
        freshness(report),
        numerics(report),
        environments(report),
        publication(report),
        evaluation(report),
        device_hours(report),
        bias(report),
        accounting(report),
    )


def closing(report: Report) -> Section:
    """The one recommendation, and the alarms."""
    found = alarms(report)
    table = Table(title="Alarms", columns=("alarm",), rows=tuple((a,) for a in found))
    return Section(title="What to do", sentence=advise(report).sentence, tables=(table,) if found else ())
