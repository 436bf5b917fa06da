"""The suite `api`: a REST service with tokens, pages, versions, batches and jobs, used over HTTP.

world: records of one instance ─► a family: what changes, in words and in rows ─► frame.Instance
records: the program that runs in the task      client: with which the reference solutions use it
"""

from typing import Final

from muster_suites.api.backfill import BACKFILL
from muster_suites.api.cleanup import CLEANUP
from muster_suites.api.importing import IMPORT
from muster_suites.api.report import REPORT
from muster_suites.api.roles import ROLES
from muster_suites.api.sync import SYNC
from muster_suites.api.tags import TAGS
from muster_suites.api.transfer import TRANSFER
from muster_suites.frame import Family

API: Final[tuple[Family, ...]] = (SYNC, ROLES, BACKFILL, REPORT, TRANSFER, TAGS, IMPORT, CLEANUP)
