"""The report as one HTML file: everything inline, nothing fetched, readable in light and dark.

Law: what a task author or a model wrote is data. The template escapes all of it; only the charts, which escape for
themselves, are marked as safe.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from muster.observe import words
from muster.observe.render.charts import charts
from muster.observe.report import Report
from muster.observe.sections.questions import closing, headline, sections

LONGEST = 4000  # characters of one reply or observation; the middle is left out
FACTS = ("model", "seed", "muster_version", "model_digest", "tasks_digest")


def render_page(report: Report) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=PackageLoader("muster.observe.render", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    untyped: Any = environment  # jinja2 leaves its filters open
    untyped.filters |= {"cut": cut, "seconds": words.seconds, "evidence": _evidence}
    return environment.get_template("page.html.j2").render(
        report=report,
        headline=headline(report),
        facts=_facts(report.meta),
        closing=closing(report),
        sections=sections(report),
        charts=charts(report),
    )


def write_page(report: Report, path: Path) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(render_page(report))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def cut(text: str) -> str:
    """Head and tail of a long text."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"


def _facts(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Digests by their first twelve digits."""
    chosen = [(key, str(meta[key])) for key in FACTS if meta.get(key) is not None]
    return [(key.replace("_", " "), value[:12] if "digest" in key else value) for key, value in chosen]


def _evidence(evidence: Mapping[str, Any]) -> str:
    return json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
