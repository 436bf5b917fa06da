from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from muster.journal import DeviceRow, Journal
from muster.observe.render.charts import charts, ticks
from muster.observe.render.page import LONGEST, cut, render_page, write_page
from muster.observe.report import build_report
from observe.synthetic import HOSTILE, SyntheticRun


class Outline(HTMLParser):
    """Tags, attributes that fetch, and whether tags are balanced."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            v or "" for k, v in attrs if k in ("src", "srcset", "data") or (k == "href" and v and v[0] != "#")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    return parser


def test_the_page_is_one_file_that_fetches_nothing(run: SyntheticRun) -> None:
    page = render_page(build_report(run.journal))
    parsed = outline(page)
    assert parsed.open == []
    assert parsed.fetched == []
    assert "script" not in parsed.tags
    assert not re.search(r"https?://|@import|url\(", page)


def test_what_a_model_or_a_task_wrote_is_text_never_markup(run: SyntheticRun) -> None:
    page = render_page(build_report(run.journal))
    assert HOSTILE not in page
    assert "<script" not in page
    assert HOSTILE in outline(page).text


def test_a_hostile_device_or_run_name_is_escaped(run: SyntheticRun) -> None:
    run.journal.set_meta("run", HOSTILE)
    run.journal.record(DeviceRow(device=HOSTILE, state="decode", start=run.now - 20, end=run.now))
    page = render_page(build_report(run.journal))
    assert "<script" not in page


def test_questions_figures_and_trajectories_are_all_there(run: SyntheticRun) -> None:
    parsed = outline(render_page(build_report(run.journal)))
    for title in ("1. How long", "2. How fresh", "3. Do engine", "4. Do the env", "5. How do new", "6. Is it better"):
        assert title in parsed.text
    assert parsed.tags.count("svg") == 3
    assert parsed.tags.count("details") == 40
    listed = parsed.text[parsed.text.rindex("Flagged, unknown") :]
    assert listed.index("g000012.1") < listed.index("g000008.2") < listed.index("g000009.3")  # unknown, lost, slow


def test_charts_are_well_formed_and_stay_inside_their_frame(run: SyntheticRun) -> None:
    for markup in charts(build_report(run.journal)).values():
        svg = ET.fromstring(markup[: markup.index("</svg>") + 6])
        width, height = (float(v) for v in svg.attrib["viewBox"].split()[2:])
        for rect in svg.iter("rect"):
            x, y, w, h = (float(rect.attrib[k]) for k in ("x", "y", "width", "height"))
            assert w >= 0 and h >= 0 and x >= 0 and y >= 0
            assert x + w <= width + 1 and y + h <= height


def test_an_empty_run_still_makes_a_page(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "empty.sqlite", meta={}) as journal:
        page = render_page(build_report(journal))
    assert "No batch has become ready yet." in page
    assert "<svg" not in page


def test_the_file_is_written_whole(run: SyntheticRun, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_page(build_report(run.journal), path)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert list(path.parent.iterdir()) == [path]


def test_a_long_text_keeps_head_and_tail() -> None:
    text = "a" * LONGEST + "b" * LONGEST
    assert cut(text).startswith("aaa")
    assert cut(text).endswith("bbb")
    assert len(cut(text)) < LONGEST + 100
    assert cut("short") == "short"


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.45, [0, 0.1, 0.2, 0.3, 0.4]), (3, 3, [3])]
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
