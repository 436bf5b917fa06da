"""Write a crontab from plain sentences: intervals, months, jobs to keep and to replace, another time zone."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _crontab(draw: Draw) -> Instance:
    level = draw.difficulty
    shift = draw.number(2, 5) if level == 5 else 0  # hours that the local time is ahead of the clock that cron uses
    kinds = [draw.choice(KINDS[: draw.at(1, 2, 4, 5, 5)]) for _ in range(draw.at(1, 2, 4, 5, 7))]
    plans = [(kind(draw, shift), f"/opt/bin/{draw.pair()}") for kind in kinds]
    sentences = [f"{when}: run {command}" for (when, _), command in plans]
    jobs = [(schedule, command) for (_, schedule), command in plans]
    wishes: list[str] = []
    files: dict[str, str] = {"files/README": "The schedule of this host belongs into /app/crontab.\n"}
    if level <= 2:
        wishes.append(
            "Write the crontab /app/crontab (five time fields and the command in each line, no user) with these jobs:"
        )
        wishes += [f"- {sentence}" for sentence in sentences]
    else:
        files["files/schedule.txt"] = "".join(f"{sentence}\n" for sentence in draw.shuffled(sentences))
        wishes.append(
            "Write the crontab /app/crontab (five time fields and the command in each line, no user) with the jobs "
            "that /app/schedule.txt describes."
        )
    if level >= 4:
        kept = (f"{draw.number(0, 59)} {draw.number(0, 23)} * * 3", f"/opt/bin/{draw.pair()}")
        stale = ("*/7 * * * *", jobs[0][1])
        files["files/crontab"] = "".join(f"{when} {what}\n" for when, what in (stale, kept))
        jobs.append(kept)
        wishes.append("Jobs that are in /app/crontab already stay, unless the new schedule names the same command.")
    if level == 5:
        wishes.append(
            f"The times and days of the schedule are local time, which is {shift} hours ahead of UTC (local 10:00 is "
            f"{10 - shift:02d}:00 UTC). Cron on this host works in UTC; jobs that are there already are in UTC."
        )
    return Instance(
        instruction="\n".join(wishes),
        files=files,
        tests=judged_by({"check": "crontab", "path": "/app/crontab", "jobs": [list(job) for job in jobs]}),
        solution="cat > crontab <<'END'\n" + "".join(f"{when} {what}\n" for when, what in jobs) + "END\n",
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _clock(draw: Draw, shift: int) -> tuple[str, str, int]:
    """Local time as a text, the minute and hour fields, and by how many days the shift moves it back."""
    hour, minute = draw.number(0, 23), draw.number(0, 59)
    return f"{hour:02d}:{minute:02d}", f"{minute} {(hour - shift) % 24}", int(hour < shift)


def _daily(draw: Draw, shift: int) -> tuple[str, str]:
    when, fields, _ = _clock(draw, shift)
    return f"Every day at {when}", f"{fields} * * *"


def _weekly(draw: Draw, shift: int) -> tuple[str, str]:
    when, fields, back = _clock(draw, shift)
    days = sorted(draw.sample(range(7), draw.number(1, 3)))
    numbers = ",".join(str(number) for number in sorted((day + 1 - back) % 7 for day in days))
    return f"Every {' and '.join(DAYS[day] for day in days)} at {when}", f"{fields} * * {numbers}"


def _workdays(draw: Draw, shift: int) -> tuple[str, str]:
    when, fields, back = _clock(draw, shift)
    return f"Monday to Friday at {when}", f"{fields} * * {'0-4' if back else '1-5'}"


def _every(draw: Draw, shift: int) -> tuple[str, str]:
    step = draw.choice((5, 10, 15, 20))
    first = draw.number(6, 12)
    last = first + draw.number(2, 9)
    hours = f"{first - shift}-{last - shift}"
    return (
        f"Every {step} minutes, the first at {first:02d}:00 and the last at {last:02d}:{60 - step}, each day",
        f"*/{step} {hours} * * *",
    )


def _monthly(draw: Draw, shift: int) -> tuple[str, str]:
    hour, minute, day = draw.number(8, 22), draw.number(0, 59), draw.number(1, 28)
    months = draw.choice((("January and July", "1,7"), ("March, June, September and December", "3,6,9,12"), ("", "*")))
    of = f" of {months[0]}" if months[0] else " of every month"
    return f"On day {day}{of} at {hour:02d}:{minute:02d}", f"{minute} {hour - shift} {day} {months[1]} *"


KINDS: Final = (_daily, _weekly, _workdays, _every, _monthly)


FAMILY = Family(
    name="crontab",
    suite="terminal",
    make=_crontab,
    levels=(
        "one daily job",
        "two jobs, daily or on given weekdays",
        "four jobs from a file: intervals, working days",
        "five jobs, months, jobs to keep and to replace",
        "seven jobs in another time zone, some on another day there",
    ),
)
