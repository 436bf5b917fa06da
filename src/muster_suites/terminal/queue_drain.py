"""Do the jobs that a dead worker left in a spool: failures, results of other jobs, expiry, unfinished files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by, tree

OPERATIONS: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "upper": ("the text in capital letters", str.upper),
    "reverse": ("the text backwards", lambda text: text[::-1]),
    "count": ("the number of words", lambda text: str(len(text.split()))),
    "sort": ("the words in alphabetical order", lambda text: " ".join(sorted(text.split()))),
}
TODAY: Final = "2024-06-15"


def _queue_drain(draw: Draw) -> Instance:
    level = draw.difficulty
    names = draw.words(draw.at(2, 5, 8, 11, 15))
    known = draw.sample(sorted(OPERATIONS), draw.at(1, 2, 3, 3, 4))
    jobs: dict[str, dict[str, str]] = {}
    for index, name in enumerate(names):
        job = {"op": draw.choice(known), "text": " ".join(draw.words(1) + draw.pairs(draw.number(1, 2)))}
        if level >= 2 and index == 1:
            job["op"] = "explode"
        if level >= 3 and index >= 2 and draw.chance(0.5):
            job["text"] = f"@{draw.choice(names[:index])}"
        if level >= 4:
            job["expires"] = draw.choice(("2024-06-14", "2024-06-15", "2024-07-01", "2025-01-01"))
        jobs[name] = job
    results = {name: _result(name, jobs) for name in names}
    done = {f"{name}.out": f"{result}\n" for name, result in results.items() if result is not None}
    failed = {f"{name}.job": _job_text(jobs[name]) for name, result in results.items() if result is None}
    order = draw.shuffled(names)
    spool = {f"incoming/{name}.job": _job_text(jobs[name]) for name in order}
    part = {f"incoming/{draw.word()}.part": "op: upp"} if level == 5 else {}
    expected: dict[str, Any] = {"incoming": None, "done": None} | part
    expected |= {f"done/{name}": text for name, text in done.items()}
    expected |= {f"failed/{name}": text for name, text in failed.items()}
    checks: list[dict[str, Any]] = []
    if level == 5:
        by_op = {op: sum(jobs[n]["op"] == op for n, r in results.items() if r is not None) for op in sorted(known)}
        summary = {"done": len(done), "failed": len(failed), "by_op": {op: n for op, n in by_op.items() if n}}
        checks.append({"check": "json", "path": "/app/spool/summary.json", "equals": summary})
        expected["summary.json"] = {"type": "file"}
    return Instance(
        instruction=_instruction(level, known),
        files={
            "files/spool/worker.pid": f"{draw.number(300, 9000)}\n",
            "files/spool/done/.keep": "",
            **({"files/spool/failed/.keep": ""} if level >= 2 else {}),
            **{f"files/spool/{path}": text for path, text in (spool | part).items()},
        },
        tests=judged_by(tree("/app/spool", expected, ignore=(".keep",)), *checks),
        solution=in_python(f"LEVEL, TODAY, KNOWN = {level}, {TODAY!r}, {known!r}\n{_SOLVE_QUEUE}"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int, known: list[str]) -> str:
    wishes = [
        "Each file /app/spool/incoming/NAME.job is a job: lines `key: value` with the keys op and text. Do all jobs: "
        "write the result to /app/spool/done/NAME.out and remove the job from incoming.",
        "Operations: " + "; ".join(f"{op}: {OPERATIONS[op][0]}" for op in sorted(known)) + ".",
        "The worker that did this has died; remove its file /app/spool/worker.pid when all is done.",
    ]
    if level >= 2:
        wishes.append("A job with any other operation fails: move its file to /app/spool/failed, without a result.")
    if level >= 3:
        wishes.append("A text `@OTHER` stands for the result of the job OTHER; the job fails if that one fails.")
    if level >= 4:
        wishes.append(f"A job whose date `expires` is before {TODAY} fails too.")
    if level == 5:
        wishes.append(
            "Files in incoming that end in .part are still being written: leave them alone. Write "
            "/app/spool/summary.json: an object with the numbers `done` and `failed`, and `by_op`, an object with the "
            "number of done jobs of each operation that has any."
        )
    return "\n".join(wishes)


def _job_text(job: dict[str, str]) -> str:
    return "".join(f"{key}: {value}\n" for key, value in job.items())


def _result(name: str, jobs: dict[str, dict[str, str]]) -> str | None:
    """None: the job fails."""
    job = jobs[name]
    text: str | None = job["text"]
    if job["text"].startswith("@"):
        text = _result(job["text"][1:], jobs)
    if text is None or job["op"] not in OPERATIONS or job.get("expires", TODAY) < TODAY:
        return None
    return OPERATIONS[job["op"]][1](text)


_SOLVE_QUEUE = """
import glob, json, os
from collections import Counter
os.chdir("spool")
run = {"upper": str.upper, "reverse": lambda t: t[::-1], "count": lambda t: str(len(t.split())),
       "sort": lambda t: " ".join(sorted(t.split()))}
jobs = {}
for path in glob.glob("incoming/*.job"):
    lines = open(path).read().splitlines()
    jobs[os.path.basename(path)[:-4]] = dict(line.split(": ", 1) for line in lines)

def result(name):
    job = jobs[name]
    text = result(job["text"][1:]) if job["text"].startswith("@") else job["text"]
    if text is None or job["op"] not in KNOWN or job.get("expires", TODAY) < TODAY:
        return None
    return run[job["op"]](text)

done = Counter()
for name, job in jobs.items():
    text = result(name)
    if text is None:
        os.rename(f"incoming/{name}.job", f"failed/{name}.job")
        continue
    with open(f"done/{name}.out", "w") as file:
        print(text, file=file)
    os.remove(f"incoming/{name}.job")
    done[job["op"]] += 1
os.remove("worker.pid")
if LEVEL == 5:
    total = sum(done.values())
    json.dump({"done": total, "failed": len(jobs) - total, "by_op": done}, open("summary.json", "w"))
"""


FAMILY = Family(
    name="queue-drain",
    suite="terminal",
    make=_queue_drain,
    levels=(
        "two jobs of one operation",
        "five jobs, one of them fails",
        "eight jobs that use each other's results",
        "eleven jobs, some have expired",
        "fifteen jobs, unfinished ones beside them, a summary",
    ),
)
