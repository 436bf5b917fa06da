"""The terminal suite: text, files, archives, links, queues, schedules. The final state of /app decides."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Family
from muster_suites.terminal import (
    archive_rescue,
    build_order,
    config_migrate,
    crontab,
    deduplicate,
    link_farm,
    log_report,
    permissions,
    queue_drain,
    retention,
    table_report,
)

TERMINAL: Final[tuple[Family, ...]] = (
    log_report.FAMILY,
    table_report.FAMILY,
    config_migrate.FAMILY,
    permissions.FAMILY,
    archive_rescue.FAMILY,
    retention.FAMILY,
    deduplicate.FAMILY,
    link_farm.FAMILY,
    queue_drain.FAMILY,
    build_order.FAMILY,
    crontab.FAMILY,
)
