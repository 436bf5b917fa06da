"""A browser of a few lines, with which reference solutions use the shop. A whole program's head: standard library only.

page ─► rows of its tables, forms with their hidden fields, the next page
form ─some fields changed─► POST ─► the page it leads to
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener


class Page(HTMLParser):
    """`rows`: of all tables, by column, with the row's first link as `href`. `forms`: action and fields."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.next = ""
        self._head: list[str] = []
        self._cells: list[str] = []
        self._links: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag == "tr":
            self._cells, self._links = [], []
        elif tag in ("th", "td"):
            self._cells.append("")
        elif tag == "a":
            self._links.append(values["href"])
        elif tag == "form":
            self.forms.append((values["action"], {}))
        elif tag == "input":
            self.forms[-1][1][values["name"]] = values["value"]

    def handle_data(self, data: str) -> None:
        if self._cells:
            self._cells[-1] += data.strip()
        if data == "next":
            self.next = self._links[-1]

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self._head = self._cells
        elif tag == "tr" and self._cells is not self._head:
            row = dict(zip(self._head, self._cells, strict=False))
            self.rows.append({**row, "href": self._links[0] if self._links else ""})
        elif tag == "table":
            self._cells = []


class Browser:
    def __init__(self, base: str) -> None:
        self._base = base
        self.log_out()

    def log_out(self) -> None:
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def login(self, login: str, password: str) -> None:
        self.submit("/login", "/login", login=login, password=password)

    def get(self, path: str) -> str:
        with self._opener.open(self._base + path, timeout=30) as answer:
            return answer.read().decode()

    def rows(self, path: str) -> Iterator[dict[str, str]]:
        """Of the page and of those that follow it."""
        while path:
            page = Page(self.get(path))
            yield from page.rows
            path = page.next

    def find(self, path: str, **wanted: str) -> dict[str, str]:
        """The one row with these values; `In_stock` stands for the column "In stock"."""
        names = {key.replace("_", " "): value for key, value in wanted.items()}
        (row,) = (row for row in self.rows(path) if all(row[key] == value for key, value in names.items()))
        return row

    def submit(self, page: str, action: str, **changed: object) -> str:
        """Send the form `action` of `page` (a path, or markup). Fields that are not named stay; name all selections."""
        markup = self.get(page) if page.startswith("/") else page
        fields = next(fields for found, fields in Page(markup).forms if found == action)
        data = urlencode({**fields, **{name: str(value) for name, value in changed.items()}}).encode()
        with self._opener.open(self._base + action, data=data, timeout=30) as answer:
            return answer.read().decode()


def cents(money: str) -> int:
    return int(money.replace(".", ""))


def lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()
