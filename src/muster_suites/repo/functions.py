"""Small functions that tasks about code are made from.

Law: pure functions of JSON values with JSON answers; the docstring is the whole specification, because it is what the
agent sees. The source of each is shipped as it stands here.
"""

from __future__ import annotations

from typing import Any


def merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    """Merge closed intervals [first, last] that overlap or share an end; the result is sorted by first."""
    merged: list[list[int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def parse_duration(text: str) -> int:
    """Seconds of a text such as '1h30m', '45s' or '2d'. Raises ValueError for any other text, the empty one too."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    total, digits = 0, ""
    if not text:
        raise ValueError("empty")
    for character in text:
        if character.isdigit():
            digits += character
        elif character in units and digits:
            total += int(digits) * units[character]
            digits = ""
        else:
            raise ValueError(text)
    if digits:
        raise ValueError(text)
    return total


def wrap_words(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken between words; a longer word has a line of its own."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    if line:
        lines.append(line)
    return lines


def compare_versions(left: str, right: str) -> int:
    """-1, 0 or 1. Versions are numbers with dots, compared number by number; missing numbers count as 0."""
    first = [int(part) for part in left.split(".")]
    second = [int(part) for part in right.split(".")]
    length = max(len(first), len(second))
    first += [0] * (length - len(first))
    second += [0] * (length - len(second))
    return (first > second) - (first < second)


def run_lengths(text: str) -> list[list[Any]]:
    """[character, count] of each run of equal characters, in order."""
    runs: list[list[Any]] = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1][1] += 1
        else:
            runs.append([character, 1])
    return runs


def slugify(text: str) -> str:
    """Lower case; each run of characters other than a-z and 0-9 becomes one hyphen; no hyphen at either end."""
    slug = ""
    for character in text.lower():
        if character in "abcdefghijklmnopqrstuvwxyz0123456789":
            slug += character
        elif not slug.endswith("-"):
            slug += "-"
    return slug.strip("-")


def moving_sums(values: list[int], window: int) -> list[int]:
    """The sum of each `window` neighbouring values, if there are as many. Raises ValueError for a window below 1."""
    if window < 1:
        raise ValueError(window)
    return [sum(values[start : start + window]) for start in range(len(values) - window + 1)]


def is_balanced(text: str) -> bool:
    """Whether the brackets (), [] and {} in the text are closed in the right order; other characters do not matter."""
    pairs = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    for character in text:
        if character in "([{":
            stack.append(character)
        elif character in pairs and (not stack or stack.pop() != pairs[character]):
            return False
    return not stack


def expand_ranges(text: str) -> list[int]:
    """'1-3,7,5-6' -> [1, 2, 3, 5, 6, 7]: both ends included, sorted, each number once. The empty text has none."""
    numbers: set[int] = set()
    for part in text.split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def to_roman(number: int) -> str:
    """Roman numeral of 1 to 3999, as in 4 -> 'IV'. Raises ValueError outside."""
    if not 1 <= number <= 3999:
        raise ValueError(number)
    steps = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL")]
    steps += [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    numeral = ""
    for value, letters in steps:
        while number >= value:
            numeral += letters
            number -= value
    return numeral


def parse_query(text: str) -> dict[str, list[str]]:
    """'a=1&b=2&a=' -> {'a': ['1', ''], 'b': ['2']}: values in order; a part without '=' has the value ''; empty parts
    do not count."""
    found: dict[str, list[str]] = {}
    for part in text.split("&"):
        if not part:
            continue
        key, _, value = part.partition("=")
        found.setdefault(key, []).append(value)
    return found


def shift_letters(text: str, distance: int) -> str:
    """Each letter a-z and A-Z moved `distance` places on in the alphabet, which is a ring; other characters stay."""
    moved = ""
    for character in text:
        if "a" <= character <= "z":
            moved += chr((ord(character) - ord("a") + distance) % 26 + ord("a"))
        elif "A" <= character <= "Z":
            moved += chr((ord(character) - ord("A") + distance) % 26 + ord("A"))
        else:
            moved += character
    return moved


def chunked(items: list[int], size: int) -> list[list[int]]:
    """Neighbouring items in lists of `size`; the last may be shorter. Raises ValueError for a size below 1."""
    if size < 1:
        raise ValueError(size)
    return [items[start : start + size] for start in range(0, len(items), size)]


def changed_keys(old: dict[str, int], new: dict[str, int]) -> dict[str, list[str]]:
    """Sorted keys that were 'added', 'removed' and 'changed' (in both, with another value)."""
    return {
        "added": sorted(key for key in new if key not in old),
        "removed": sorted(key for key in old if key not in new),
        "changed": sorted(key for key in new if key in old and old[key] != new[key]),
    }
