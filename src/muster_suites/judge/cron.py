"""The check of a crontab: when each command fires, not how it is written.

A week and all months are compared: a schedule is the set of (month, day, weekday, hour, minute) that a line covers.
"""

from __future__ import annotations

from muster_suites.judge.files import text

FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
NAMES = {
    name: number
    for names, first in (("jan feb mar apr may jun jul aug sep oct nov dec", 1), ("sun mon tue wed thu fri sat", 0))
    for number, name in enumerate(names.split(), first)
}
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
Schedule = tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int], frozenset[int], bool, bool]


def check_crontab(path: str, jobs: list[list[str]]) -> list[str]:
    """`jobs`: (schedule, command). The file fires exactly these; comments, order and settings do not matter."""
    found: list[tuple[Schedule, str]] = []
    for line in text(path).splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#") or "=" in entry.split(None, 1)[0]:
            continue
        head = SHORT.get(entry.split(None, 1)[0])
        fields = f"{head} {entry.split(None, 1)[-1]}".split(None, 5) if head else entry.split(None, 5)
        schedule = parse(fields[:5])
        if schedule is None or len(fields) < 6:
            return [f"{path}: not a line of a crontab: {entry[:80]}"]
        found.append((schedule, " ".join(fields[5].split())))
    wanted = [(parse(schedule.split()), command) for schedule, command in jobs]
    missing = [command for schedule, command in wanted if (schedule, command) not in found]
    problems = [f"{path}: no such schedule for {command}" for command in missing]
    return problems + ([f"{path}: {len(found)} jobs, {len(jobs)} expected"] if len(found) != len(jobs) else [])


def parse(fields: list[str]) -> Schedule | None:
    """Five fields as sets, and whether day and weekday are free: cron takes either day when both are set."""
    if len(fields) != 5:
        return None
    sets: list[frozenset[int]] = []
    for field, (low, high) in zip(fields, FIELDS, strict=True):
        values = _values(field.lower(), low, high)
        if values is None:
            return None
        sets.append(values)
    minutes, hours, days, months, weekdays = sets
    weekdays = frozenset(day % 7 for day in weekdays)
    free_day, free_weekday = len(days) == 31, len(weekdays) == 7
    return minutes, hours, days, months, weekdays, free_day, free_weekday


def _values(field: str, low: int, high: int) -> frozenset[int] | None:
    values: set[int] = set()
    for part in field.split(","):
        span, _, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        first = low if span == "*" else _number(first_text)
        last = high if span == "*" or (step_text and not dash) else _number(last_text) if dash else first
        step = _number(step_text) if step_text else 1
        if first is None or last is None or not step or not low <= first <= last <= high:
            return None
        values |= set(range(first, last + 1, step))
    return frozenset(values)


def _number(word: str) -> int | None:
    if word in NAMES:
        return NAMES[word]
    return int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None
