"""The journal: one SQLite file (WAL) that holds everything a run did.

Law: a fact is committed here before anything counts it. Reports, resume and replay read nothing else. One
process writes; any number may read while it does. A table is a frozen row class; columns are its fields.

    launch ─► trajectory | drop          every launch ends in exactly one of the two
    keep                                 where a lost one goes on; gone when its sibling has ended
    group  ─► batch ─► step ─► publication
    span (trajectories), device (devices), metric, event, evaluation, checkpoint, session, meta

Times are seconds on `clock.now()`.
"""

from muster.journal.rows import (
    BatchRow,
    CheckpointRow,
    DeviceRow,
    DropRow,
    EventRow,
    GroupRow,
    KeepRow,
    LaunchRow,
    MetricRow,
    Purpose,
    SessionRow,
    SpanRow,
    StepRow,
    TrajectoryRow,
)
from muster.journal.store import FILE_NAME, SCHEMA_VERSION, Journal

__all__ = [
    "FILE_NAME",
    "SCHEMA_VERSION",
    "BatchRow",
    "CheckpointRow",
    "DeviceRow",
    "DropRow",
    "EventRow",
    "GroupRow",
    "Journal",
    "KeepRow",
    "LaunchRow",
    "MetricRow",
    "Purpose",
    "SessionRow",
    "SpanRow",
    "StepRow",
    "TrajectoryRow",
]
