"""Subjects of tasks about code: a function, its inputs, and ways to break it.

Law: a bug is one replacement in the source, and shows at one of the `edges`, which are always tried; what the hidden
calls expect is what the unbroken function answers.

    functions.py ─source─► broken(bug) | hollow() ─► files of the agent        calls(draw) ─► hidden calls of the judge
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from muster_suites.frame import Draw
from muster_suites.repo import functions

Cases = Callable[[Draw], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A function, its inputs, and its possible bugs: (text of the source, what stands there instead).

    `edges` are inputs that are always tried; each bug shows at one of them.
    """

    function: Callable[..., Any]
    cases: Cases
    edges: tuple[list[Any], ...]
    bugs: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def source(self) -> str:
        return inspect.getsource(self.function)

    def broken(self, bug: tuple[str, str]) -> str:
        assert self.source.count(bug[0]) == 1, (self.name, bug)
        return self.source.replace(*bug)

    def shows(self, bug: tuple[str, str], arguments: list[Any]) -> bool:
        """Whether the broken function answers otherwise."""
        scope: dict[str, Any] = {"Any": Any}
        exec(compile(self.broken(bug), self.name, "exec"), scope)
        try:
            return answer(scope[self.name], arguments) != answer(self.function, arguments)
        except (TypeError, IndexError, KeyError):
            return True

    def hollow(self) -> str:
        """The signature and the docstring, without a body."""
        head, _, _ = self.source.rpartition('"""\n')
        return f'{head}"""\n    raise NotImplementedError\n'

    def calls(self, draw: Draw, module: str, count: int) -> list[dict[str, Any]]:
        """For the check `calls`: the edges and up to `count` more inputs, and what the correct function answers."""
        found: dict[str, dict[str, Any]] = {}
        for arguments in (*self.edges, *(self.cases(draw) for _ in range(count))):
            call = {"module": module, "function": self.name, "arguments": arguments}
            found.setdefault(repr(arguments), call | answer(self.function, arguments))
        return list(found.values())


def answer(function: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    """`value`, or the exception that it `raises`."""
    try:
        return {"value": function(*deepcopy(arguments))}
    except ValueError as error:
        return {"raises": type(error).__name__}


def module_source(sources: Sequence[str]) -> str:
    """A Python module with these functions."""
    return "from __future__ import annotations\n\nfrom typing import Any\n\n\n" + "\n\n".join(sources)


def deal(draw: Draw, modules: int, each: int) -> Mapping[str, list[Subject]]:
    """Freshly named modules of `each` subjects."""
    drawn = draw.sample(SUBJECTS, modules * each)
    return {draw.word(): drawn[i * each : (i + 1) * each] for i in range(modules)}


def _numbers(draw: Draw, low: int, high: int, most: int) -> list[int]:
    return [draw.number(low, high) for _ in range(draw.number(0, most))]


def _letters(draw: Draw, alphabet: str, most: int) -> str:
    return "".join(draw.choice(alphabet) for _ in range(draw.number(0, most)))


def _intervals(draw: Draw) -> list[Any]:
    firsts = _numbers(draw, 0, 30, 6)
    return [[[first, first + draw.number(0, 12)] for first in firsts]]


def _durations(draw: Draw) -> list[Any]:
    parts = "".join(f"{draw.number(0, 99)}{draw.choice('dhms')}" for _ in range(draw.number(0, 3)))
    return [parts + draw.choice(("", "", "", "5", "x", "h"))]


def _sentences(draw: Draw) -> list[Any]:
    text = " ".join(
        draw.choice(("a", "be", "the", "some", "words", "longer", "sentence")) for _ in range(draw.number(0, 12))
    )
    return [text, draw.number(4, 16)]


def _versions(draw: Draw) -> list[Any]:
    first = [draw.number(0, 11) for _ in range(draw.number(1, 4))]
    second = list(first) if draw.chance(0.6) else [draw.number(0, 11) for _ in range(draw.number(1, 4))]
    if draw.chance(0.5):
        second.append(draw.choice((0, 0, 1)))
    return [".".join(map(str, first)), ".".join(map(str, second))]


def _ranges(draw: Draw) -> list[Any]:
    parts = [str(n) if draw.chance(0.4) else f"{n}-{n + draw.number(0, 4)}" for n in _numbers(draw, 0, 20, 5)]
    return [",".join(parts)]


def _queries(draw: Draw) -> list[Any]:
    parts = [draw.choice(("a=1", "b=2", "a=", "c", "", "b=x=y", "d=4")) for _ in range(draw.number(0, 6))]
    return ["&".join(parts)]


def _keys(draw: Draw) -> list[Any]:
    return [{key: draw.number(0, 2) for key in draw.sample("abcdefg", draw.number(0, 6))} for _ in range(2)]


SUBJECTS: Final = (
    Subject(
        function=functions.merge_intervals,
        cases=_intervals,
        edges=([[[1, 3], [3, 5]]], [[[1, 9], [2, 3]]], [[[5, 6], [1, 2]]], [[]]),
        bugs=(
            ("first <= merged", "first < merged"),
            ("max(merged[-1][1], last)", "last"),
            ("in sorted(intervals)", "in intervals"),
        ),
    ),
    Subject(
        function=functions.parse_duration,
        cases=_durations,
        edges=(["1h30m"], ["5"], [""], ["h"], ["2d4s"]),
        bugs=(
            ("    if digits:\n        raise ValueError(text)\n", ""),
            ('            digits = ""\n', ""),
            ("3600", "360"),
            ('    if not text:\n        raise ValueError("empty")\n', ""),
        ),
    ),
    Subject(
        function=functions.wrap_words,
        cases=_sentences,
        edges=(["ab cd", 4], ["ab cd", 5], ["", 5], ["abcdefgh ij", 4]),
        bugs=(
            ("len(line) + 1 + len(word)", "len(line) + len(word)"),
            ("    if line:\n        lines.append(line)\n", ""),
            ("> width", ">= width"),
        ),
    ),
    Subject(
        function=functions.compare_versions,
        cases=_versions,
        edges=(["1.0", "1"], ["1", "1.0"], ["1.10", "1.9"], ["1", "2"]),
        bugs=(
            ("    second += [0] * (length - len(second))\n", ""),
            ("first = [int(part) for part", "first = [part for part"),
            ("(first > second) - (first < second)", "int(first > second)"),
        ),
    ),
    Subject(
        function=functions.run_lengths,
        cases=lambda draw: [_letters(draw, "aab", 10)],
        edges=(["aaab"], [""], ["aba"]),
        bugs=(("[character, 1]", "[character, 0]"), ("runs[-1][1] += 1", "runs[-1][1] = 2")),
    ),
    Subject(
        function=functions.slugify,
        cases=lambda draw: [_letters(draw, "abZ09 -_!", 14)],
        edges=(["-A  b0-"], [""], ["x--y"]),
        bugs=(
            ('.strip("-")', ""),
            ("text.lower()", "text"),
            ('        elif not slug.endswith("-"):\n', "        else:\n"),
            ("0123456789", "123456789"),
        ),
    ),
    Subject(
        function=functions.moving_sums,
        cases=lambda draw: [_numbers(draw, -9, 9, 8), draw.number(0, 4)],
        edges=([[1, 2, 3], 2], [[1], 2], [[1, 2], 0], [[4, 5], 1]),
        bugs=(
            ("len(values) - window + 1", "len(values) - window"),
            ("start + window]", "start + window + 1]"),
            ("window < 1", "window < 0"),
        ),
    ),
    Subject(
        function=functions.is_balanced,
        cases=lambda draw: [draw.choice(("", "()", "[]", "{}", "[()]")) + _letters(draw, "(())[]{}x", 4)],
        edges=(["(]"], ["("], ["([]{})"], ["x)"], [""]),
        bugs=(
            ("    return not stack\n", "    return True\n"),
            ("(not stack or stack.pop() != pairs[character])", "(not stack or not stack.pop())"),
        ),
    ),
    Subject(
        function=functions.expand_ranges,
        cases=_ranges,
        edges=(["1-3,7"], ["5,1,5"], [""], ["2,,3"]),
        bugs=(
            ("int(last or first) + 1", "int(last or first)"),
            ("return sorted(numbers)", "return sorted(numbers, reverse=True)"),
            ("        if not part:\n            continue\n", ""),
        ),
    ),
    Subject(
        function=functions.to_roman,
        cases=lambda draw: [
            draw.choice((0, 4, 9, 40, 90, 400, 900, 3999, 4000)) if draw.chance(0.3) else draw.number(1, 3999)
        ],
        edges=([9], [40], [0], [4000], [3888]),
        bugs=(
            (' (9, "IX"),', ""),
            ("while number >= value", "if number >= value"),
            ("<= 3999", "<= 4000"),
            ('(40, "XL")', '(40, "LX")'),
        ),
    ),
    Subject(
        function=functions.parse_query,
        cases=_queries,
        edges=(["b=x=y"], ["a=1&&c"], ["a=1&a=2"], [""]),
        bugs=(
            ('part.partition("=")', 'part.rpartition("=")'),
            ("        if not part:\n            continue\n", ""),
            ("found.setdefault(key, []).append(value)", "found[key] = [value]"),
        ),
    ),
    Subject(
        function=functions.shift_letters,
        cases=lambda draw: [_letters(draw, string.ascii_letters + " !", 10), draw.number(-30, 30)],
        edges=(["xyz XYZ!", 3], ["abz", -1], ["", 4]),
        bugs=(
            ('% 26 + ord("A")', '+ ord("A")'),
            ('"a" <= character <= "z"', '"a" <= character < "z"'),
            ("            moved += character\n", '            moved += ""\n'),
        ),
    ),
    Subject(
        function=functions.chunked,
        cases=lambda draw: [_numbers(draw, 0, 9, 9), draw.number(0, 4)],
        edges=([[1, 2, 3], 2], [[1], 0], [[1], -1], [[], 3], [[1, 2, 3, 4, 5, 6], 2]),
        bugs=(
            ("len(items), size)", "len(items) - size + 1, size)"),
            ("size < 1", "size == 0"),
            ("start + size]", "size]"),
        ),
    ),
    Subject(
        function=functions.changed_keys,
        cases=_keys,
        edges=([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 0}], [{"a": 1}, {}], [{}, {}]),
        bugs=(
            ("key in old and old[key] != new[key]", "key in old"),
            ("for key in old if key not in new", "for key in new if key not in old"),
        ),
    ),
)
