"""Convert an INI file of an old release to JSON: types, comments, inheritance, references, lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by


def _config_migrate(draw: Draw) -> Instance:
    level = draw.difficulty
    lines: list[str] = ["; settings of the old release"] if level >= 3 else []
    values: dict[str, dict[str, Any]] = {}
    for section in draw.words(draw.at(1, 2, 3, 3, 4)):
        parent = draw.choice(list(values)) if level >= 4 and values and draw.chance(0.7) else None
        lines += ["", f"[{section} : {parent}]" if parent else f"[{section}]"]
        own: dict[str, Any] = dict(values[parent]) if parent else {}
        keys = [*(draw.sample(list(own), 1) if parent else ()), *draw.words(draw.at(2, 2, 3, 3, 4))]
        for key in keys:
            if level >= 3 and draw.chance(0.25):
                lines.append(f"{key} = {draw.pair()}")  # overwritten by the next line
            own[key], text = _setting(draw, values)
            lines.append(f"{key} = {text}" + ("   ; checked" if level >= 3 and draw.chance(0.3) else ""))
        values[section] = own
    return Instance(
        instruction=_instruction(level),
        files={"files/settings.ini": "".join(f"{line}\n" for line in lines).lstrip("\n")},
        tests=judged_by({"check": "json", "path": "/app/settings.json", "equals": values}),
        solution=in_python(f"LEVEL = {level}\n{_SOLVE_CONFIG}"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int) -> str:
    rules = ["Convert /app/settings.ini to /app/settings.json: an object with one object for each section."]
    if level >= 2:
        rules.append("Whole numbers become numbers, yes and no become true and false, everything else is a string.")
    else:
        rules.append("All values are strings.")
    if level >= 3:
        rules.append(
            "A semicolon starts a comment that reaches to the end of its line. Of several lines for a key the last "
            "counts."
        )
    if level >= 4:
        rules.append(
            "A section `[name : parent]` has all the values of its parent, which stands above it, unless it sets its "
            "own; its name is the part before the colon."
        )
    if level == 5:
        rules.append(
            "A value ${section.key} means the final value of that key, with its type. A value with commas becomes a "
            "list of strings."
        )
    return "\n".join(rules)


def _setting(draw: Draw, values: Mapping[str, Mapping[str, Any]]) -> tuple[Any, str]:
    """A value and how it is written."""
    kind = draw.number(0, draw.at(0, 2, 3, 3, 5))
    if kind == 1:
        number = draw.number(1, 9000)
        return number, str(number)
    if kind == 2:
        return (True, "yes") if draw.chance(0.5) else (False, "no")
    if kind == 3:
        text = f"{draw.pair()} = {draw.pair()}"  # an equals sign inside a value
        return text, text
    if kind == 4 and values:
        section = draw.choice(list(values))
        key = draw.choice(list(values[section]))
        return values[section][key], f"${{{section}.{key}}}"
    if kind == 5:
        items = draw.pairs(draw.number(2, 4))
        return items, ", ".join(items)
    text = draw.pair()
    return text, text


_SOLVE_CONFIG = """
import json
sections = {}
for line in open("settings.ini"):
    if LEVEL >= 3:
        line = line.split(";")[0]
    line = line.strip()
    if line.startswith("["):
        name, _, parent = (part.strip() for part in line[1:-1].partition(":"))
        current = sections[name] = dict(sections[parent]) if parent else {}
    elif line:
        key, _, text = (part.strip() for part in line.partition("="))
        value = text
        if LEVEL == 5 and text.startswith("${"):
            section, _, other = text[2:-1].partition(".")
            value = sections[section][other]
        elif LEVEL == 5 and "," in text:
            value = [item.strip() for item in text.split(",")]
        elif LEVEL >= 2 and text.isdigit():
            value = int(text)
        elif LEVEL >= 2 and text in ("yes", "no"):
            value = text == "yes"
        current[key] = value
json.dump(sections, open("settings.json", "w"))
"""


FAMILY = Family(
    name="config-migrate",
    suite="terminal",
    make=_config_migrate,
    levels=(
        "one section of two strings",
        "two sections, numbers and switches",
        "three sections, comments, repeated keys, equals signs in values",
        "inheritance",
        "references and lists",
    ),
)
