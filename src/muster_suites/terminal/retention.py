"""Delete the backups that no rule keeps: the newest, the first of each month, pinned ones, rules for each name."""

from __future__ import annotations

from datetime import date, timedelta

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by, tree


def _retention(draw: Draw) -> Instance:
    level = draw.difficulty
    hosts = draw.words(draw.at(1, 2, 2, 3, 4))
    first = date(2024, draw.number(1, 9), draw.number(1, 28))
    days = {
        host: sorted(first + timedelta(days=d) for d in draw.sample(range(draw.at(12, 20, 70, 90, 120)), 6 + 3 * level))
        for host in hosts
    }
    rules = {host: (draw.number(2, 4), draw.number(1, 3) if level >= 3 else 0) for host in hosts}
    if level < 5:
        rules = dict.fromkeys(hosts, rules[hosts[0]])
    pinned = {f"{host}-{draw.choice(days[host])}.tar" for host in hosts} if level >= 4 else set[str]()
    kept = {f"{host}-{day}.tar" for host in hosts for day in _kept(days[host], *rules[host])} | pinned
    everything = [f"{host}-{day}.tar" for host in hosts for day in days[host]]
    others = [f"{hosts[0]}-notes.txt", f"{draw.word()}.tar"] if level >= 2 else []
    contents = {name: f"{draw.hexadecimal(16)}\n" for name in [*everything, *others]}
    files = {f"files/backups/{name}": text for name, text in contents.items()}
    if level >= 4:
        files["files/pinned.txt"] = "".join(f"{name}\n" for name in sorted(pinned))
    if level == 5:
        files["files/rules.txt"] = "".join(f"{host} {rules[host][0]} {rules[host][1]}\n" for host in hosts)
    return Instance(
        instruction=_instruction(level, *rules[hosts[0]]),
        files=files,
        tests=judged_by(tree("/app/backups", {name: contents[name] for name in [*kept, *others]})),
        solution=in_python(f"RULES = {rules!r}\nKEEP = {sorted(pinned)!r}\n{_SOLVE_RETENTION}"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int, newest: int, monthly: int) -> str:
    wishes = [
        "/app/backups holds backups named NAME-YYYY-MM-DD.tar. Delete those that the following rules do not keep.",
        f"Of each NAME the {newest} newest are kept." if level < 5 else "Of each NAME some of the newest are kept.",
    ]
    months = "latest month that has" if monthly == 1 else f"{monthly} latest months that have"
    if 3 <= level < 5:
        wishes.append(f"In addition the oldest backup of a calendar month is kept, for the {months} any.")
    if level == 5:
        wishes.append(
            "In addition the oldest backup of a calendar month is kept, for some of the latest months that have any. "
            "/app/rules.txt has in each line: NAME, how many of the newest, how many months."
        )
    if level >= 4:
        wishes.append("What is named in /app/pinned.txt is kept in any case.")
    if level >= 2:
        wishes.append("Files with names of another form stay.")
    return "\n".join(wishes)


def _kept(days: list[date], newest: int, months: int) -> set[date]:
    firsts: dict[tuple[int, int], date] = {}
    for day in days:
        firsts.setdefault((day.year, day.month), day)
    return {*days[-newest:], *(firsts[month] for month in sorted(firsts)[len(firsts) - min(months, len(firsts)) :])}


_SOLVE_RETENTION = """
import os, re
backups = {}
for name in sorted(os.listdir("backups")):
    if match := re.fullmatch(r"(\\w+)-(\\d{4}-\\d\\d)-\\d\\d\\.tar", name):
        backups.setdefault(match[1], []).append((match[2], name))
for host, found in backups.items():
    newest, months = RULES[host]
    keep = {name for _, name in found[-newest:]} | set(KEEP)
    firsts = {}
    for month, name in found:
        firsts.setdefault(month, name)
    keep |= {firsts[month] for month in sorted(firsts, reverse=True)[:months]}
    for _, name in found:
        if name not in keep:
            os.remove(f"backups/{name}")
"""


FAMILY = Family(
    name="retention",
    suite="terminal",
    make=_retention,
    levels=(
        "one name, the newest stay",
        "two names, other files beside them",
        "the first of each month stays too",
        "pinned files",
        "rules for each name, in a file",
    ),
)
