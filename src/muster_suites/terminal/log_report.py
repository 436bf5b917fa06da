"""Count the error lines of each service in a rotated log: compressed parts, a time window, repeated lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from muster_suites.archives import gzip_file
from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by


def _log_report(draw: Draw) -> Instance:
    services = sorted(draw.words(draw.at(2, 3, 4, 5, 6)))
    day = f"2024-{draw.number(1, 12):02d}-{draw.number(10, 18):02d}"
    window = (f"{day}T06:00:00Z", f"{day}T18:00:00Z") if draw.difficulty >= 4 else None
    lines: list[str] = []
    errors: dict[str, str] = {}
    count = draw.at(8, 30, 60, 150, 300)
    for index in range(count):
        second = index * 86_400 // count if window else index * 40
        moment = f"{day}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        level = "ERROR" if index == count // 2 else draw.choice(("INFO", "INFO", "WARN", "ERROR"))
        service, request = draw.choice(services), draw.hexadecimal(10)
        message = draw.choice(("slow answer", "cache refreshed", "retry"))
        if draw.difficulty >= 2 and draw.chance(0.2):
            message = "last ERROR was handled"
        lines.append(f"{moment} {level} {service} id={request} {message}")
        if level == "ERROR" and (window is None or window[0] <= moment < window[1]):
            errors[request] = service
    counts = Counter(errors.values())
    name = draw.word()
    condition = f'&& $1>="{window[0]}" && $1<"{window[1]}"' if window else ""
    return Instance(
        instruction=_instruction(draw.difficulty, name, window),
        files={f"files/logs/{path}": data for path, data in _rotated(name, lines, draw).items()},
        tests=judged_by(
            {"check": "lines", "path": "/app/report.txt", "lines": [f"{s} {counts[s]}" for s in services if counts[s]]}
        ),
        solution=f"zcat -f logs/{name}.log* | awk '$2==\"ERROR\" {condition} {{print $3, $4}}' | sort -u "
        "| awk '{n[$1]++} END {for (s in n) print s, n[s]}' | LC_ALL=C sort > report.txt",
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int, name: str, window: tuple[str, str] | None) -> str:
    wishes = [
        f"The log of the application is in /app/logs: {name}.log",
        "For each service that logged at least one line of level ERROR (the second word of a line; the word may "
        "also occur in messages), write one line `<service> <number of ERROR lines>` to /app/report.txt, "
        "sorted by service name.",
    ]
    if level >= 2:
        wishes[0] += ", and older parts beside it whose names begin with the same word"
        wishes[0] += "; those that end in .gz are compressed." if level >= 3 else "."
    else:
        wishes[0] += "."
    if window:
        wishes.append(f"Count only lines from {window[0]} on and before {window[1]}.")
    if level == 5:
        wishes.append("Rotation repeated some lines: lines with the same id count once.")
    return "\n".join(wishes)


def _rotated(name: str, lines: list[str], draw: Draw) -> Mapping[str, str | bytes]:
    parts = draw.at(1, 2, 3, 4, 5)
    size = -(-len(lines) // parts)
    repeated = 5 if draw.difficulty == 5 else 0
    texts = ["".join(f"{line}\n" for line in lines[i * size : (i + 1) * size + repeated]) for i in range(parts)]
    files: dict[str, str | bytes] = {}
    for age, text in enumerate(reversed(texts)):
        if age == 0:
            files[f"{name}.log"] = text
        elif age == 1:
            files[f"{name}.log.1"] = text
        else:
            files[f"{name}.log.{age}.gz"] = gzip_file(text.encode())
    return files


FAMILY = Family(
    name="log-report",
    suite="terminal",
    make=_log_report,
    levels=(
        "8 lines in one file",
        "30 lines in two files; messages that mention the level",
        "60 lines in three files, one compressed",
        "150 lines in four files; a time window",
        "300 lines in five files; repeated lines that count once",
    ),
)
