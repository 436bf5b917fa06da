"""Markup of the shop's pages. Law: text is escaped unless it is `Html` already; nothing here reads the state.

This module travels into the image of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import urlencode


class Html(str):
    """Finished markup."""

    __slots__ = ()


def text(value: object) -> Html:
    return value if isinstance(value, Html) else Html(escape(str(value)))


def joined(parts: Iterable[object], by: str = "\n") -> Html:
    return Html(by.join(text(part) for part in parts))


def element(name: str, content: object, **attributes: object) -> Html:
    """`class_` is written as `class`, since Python keeps that word."""
    written = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{written}>{text(content)}</{name}>")


def link(href: str, label: object) -> Html:
    return element("a", label, href=href)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Html:
    lines = [joined((element("th", name) for name in head), "")]
    lines += [joined((element("td", cell) for cell in row), "") for row in rows]
    return element("table", joined(element("tr", line) for line in lines))


def hidden(name: str, value: object) -> Html:
    return Html(f'<input type="hidden" name="{text(name)}" value="{text(value)}">')


def field(label: str, name: str, value: object = "") -> Html:
    return Html(f'<label>{text(label)} <input name="{text(name)}" value="{text(value)}"></label>')


def select(label: str, name: str, options: Iterable[str], chosen: str = "") -> Html:
    listed = joined(
        (Html(f"<option{' selected' if option == chosen else ''}>{text(option)}</option>") for option in options), ""
    )
    return Html(f'<label>{text(label)} <select name="{text(name)}">{listed}</select></label>')


def form(action: str, csrf: str, fields: Iterable[object], button: str) -> Html:
    inner = joined([hidden("csrf", csrf), *fields, element("button", button)])
    return element("form", inner, method="post", action=action)


def pager(path: str, query: Mapping[str, str], page: int, pages: int) -> Html:
    """Where to go from here; the other keys of the query stay."""
    parts: list[object] = [f"Page {page} of {pages}"]
    for label, number in (("previous", page - 1), ("next", page + 1)):
        if 1 <= number <= pages:
            parts.append(link(f"{path}?{urlencode({**query, 'page': number})}", label))
    return element("p", joined(parts, " "), class_="pager")


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def document(shop: str, title: str, links: Iterable[tuple[str, str]], parts: Iterable[object]) -> bytes:
    menu = element("nav", joined((link(href, label) for href, label in links), " "))
    body = joined([menu, element("h1", title), *parts])
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)} - {text(shop)}</title>'
    return f"{head}</head><body>\n{body}\n</body></html>\n".encode()
