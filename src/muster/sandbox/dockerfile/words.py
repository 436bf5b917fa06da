"""Words of a Dockerfile: quoting, splitting and variables. Law: pure text; nothing here is ever run by a shell.

    split   A="b c" d\\ e   ─►  [A="b c"] [d\\ e]      quotes kept: each word is expanded on its own
    expand  "$A/x"          ─►  value of A, /x        quotes and escapes removed

Variables: $A, ${A}, ${A:-word}, ${A:+word}, ${A:?message} (without the colon: an empty value counts as set),
${A#pattern}, ${A##pattern}, ${A%pattern}, ${A%%pattern}, ${A/pattern/word}, ${A//pattern/word}. A single-quoted or
escaped $ stays; an unknown variable is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":[-+?]|[-+?]|##?|%%?|//?")


class WordError(ValueError):
    """Error in the text of a Dockerfile, in words for its author."""


def split(text: str, escape: str = "\\") -> list[str]:
    """At white space outside of quotes. Quotes and escapes are kept. Raises `WordError` for an open quote."""
    words: list[str] = []
    word, quote, position = "", "", 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == escape and quote != "'" and position < len(text):
            word += char + text[position]
            position += 1
        elif char.isspace() and not quote:
            words += [word] if word else []
            word = ""
        else:
            word += char
            if char in "'\"" and quote in ("", char):
                quote = "" if quote else char
    if quote:
        raise WordError(f"the quote {quote} does not end")
    return words + ([word] if word else [])


def expand(text: str, env: Mapping[str, str], escape: str = "\\") -> str:
    """`text` with its variables replaced and its quotes removed. Raises `WordError`.

    Example: `expand('"$A"-${B:-none}', {"A": "x y"})` gives `x y-none`
    """
    return _Scanner(text, env, escape).word(until="")


def expand_text(text: str, env: Mapping[str, str], escape: str = "\\") -> str:
    """The variables of a here-document: quotes are text in it, and only `$` can be escaped. Raises `WordError`."""
    return _Scanner(text, env, escape).text()


class _Scanner:
    """Reads once from left to right; a word after an operator is read by the same rules."""

    def __init__(self, text: str, env: Mapping[str, str], escape: str) -> None:
        self._text = text
        self._env = env
        self._escape = escape
        self._position = 0

    def word(self, until: str) -> str:
        """Up to a character of `until`, which is taken as well; without one, up to the end."""
        result = ""
        while char := self._take():
            if char in until:
                return result
            if char == "'":
                result += self._single_quoted()
            elif char == '"':
                result += self._double_quoted()
            elif char == self._escape:
                result += self._take() or char
            else:
                result += self._variable() if char == "$" else char
        if until:
            raise WordError(f"{self._text!r}: no closing {until[-1]}")
        return result

    def text(self) -> str:
        result = ""
        while char := self._take():
            if char == self._escape and self._text[self._position : self._position + 1] == "$":
                result += self._take()
            else:
                result += self._variable() if char == "$" else char
        return result

    def _take(self) -> str:
        char = self._text[self._position : self._position + 1]
        self._position += 1
        return char

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        self._position = found.end() if found else self._position
        return found[0] if found else ""

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._position)
        if end < 0:
            raise WordError(f"{self._text!r}: the quote ' does not end")
        start, self._position = self._position, end + 1
        return self._text[start:end]

    def _double_quoted(self) -> str:
        result = ""
        while char := self._take():
            if char == '"':
                return result
            if char == self._escape and self._text[self._position : self._position + 1] in ('"', "$", self._escape):
                result += self._take()
            else:
                result += self._variable() if char == "$" else char
        raise WordError(f'{self._text!r}: the quote " does not end')

    def _variable(self) -> str:
        """Expand the variable after a $."""
        if self._text[self._position : self._position + 1] != "{":
            name = self._match(_NAME)
            return self._env.get(name, "") if name else "$"
        self._position += 1
        name = self._match(_NAME)
        if not name:
            raise WordError(f"{self._text!r}: ${{ needs a name")
        operator = self._match(_OPERATOR)
        if operator in ("/", "//"):
            return _replace(self._env.get(name, ""), self.word("/"), self.word("}"), every=operator == "//")
        word = self.word("}")
        if not operator and word:
            raise WordError(f"{self._text!r}: ${{{name}{word}}} is no form that is known")
        return self._apply(name, operator, word)

    def _apply(self, name: str, operator: str, word: str) -> str:
        value = self._env.get(name, "")
        given = bool(value) if operator.startswith(":") else name in self._env
        match operator.removeprefix(":"):
            case "-":
                return value if given else word
            case "+":
                return word if given else ""
            case "?" if not given:
                raise WordError(f"{name}: {word or 'has no value'}")
            case "#" | "##" | "%" | "%%":
                return _trim(value, word, front=operator[0] == "#", longest=len(operator) == 2)
            case _:
                return value


def _trim(value: str, pattern: str, *, front: bool, longest: bool) -> str:
    """`value` without the shortest or longest part at its front or back that matches."""
    cuts = range(len(value) + 1)
    for cut in cuts if front != longest else reversed(cuts):
        part, rest = (value[:cut], value[cut:]) if front else (value[cut:], value[:cut])
        if fnmatchcase(part, pattern):
            return rest
    return value


def _replace(value: str, pattern: str, word: str, *, every: bool) -> str:
    """The leftmost longest match, or each of them, replaced."""
    result, start = "", 0
    while start < len(value):
        end = next((e for e in range(len(value), start, -1) if fnmatchcase(value[start:e], pattern)), None)
        if end is None:
            result, start = result + value[start], start + 1
            continue
        result, start = result + word, end
        if not every:
            break
    return result + value[start:]
