"""Order targets by what they need, ties by name: undeclared ones, one goal's, rings."""

from __future__ import annotations

import heapq
from typing import Any

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by


def _build_order(draw: Draw) -> Instance:
    level = draw.difficulty
    names = draw.words(draw.at(4, 8, 12, 18, 24))
    needs: dict[str, list[str]] = {names[0]: []}
    for index, name in enumerate(names[1:], 1):
        count = 1 if level == 1 else draw.number(0, min(index, 3))
        needs[name] = draw.sample(names[:index], count) if level > 1 else [names[index - 1]]
    goal = names[-1]
    if level >= 4 and not needs[goal]:
        needs[goal] = [names[0]]
    if level == 5:  # a ring of three, with nothing to do with the goal unless it depends on it
        ring = names[3:6]
        for name, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            needs[name] = sorted({*needs[name], other})
    order = _order(needs)
    blocked = sorted(set(names) - set(order))
    if level == 4:
        wanted = _reached(goal, needs)
        order = [name for name in order if name in wanted]
    declared = [n for n in draw.shuffled(names) if needs[n] or level < 3 or not any(n in o for o in needs.values())]
    lines = [f"{name}: {' '.join(draw.shuffled(needs[name]))}".rstrip() for name in declared]
    checks: list[dict[str, Any]] = [{"check": "lines", "path": "/app/order.txt", "lines": order}]
    if level == 5:
        checks.append({"check": "lines", "path": "/app/blocked.txt", "lines": blocked})
    return Instance(
        instruction=_instruction(level, goal),
        files={"files/deps.txt": "".join(f"{line}\n" for line in lines)},
        tests=judged_by(*checks),
        solution=in_python(f"LEVEL, GOAL = {level}, {goal!r}\n{_SOLVE_ORDER}"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int, goal: str) -> str:
    wishes = [
        "/app/deps.txt has in each line a target, a colon, and the targets that must be built before it.",
        "Write /app/order.txt: one target in each line, in the order in which to build them, one after the other. "
        "Whenever several can be built next, take the one whose name is first in alphabetical order.",
    ]
    if level >= 3:
        wishes.append("A target that is only named after a colon needs nothing, but must be built as well.")
    if level == 4:
        wishes.append(
            f"Order all targets in this way, but list only {goal} and those that it needs, directly or indirectly."
        )
    if level == 5:
        wishes.append(
            "Targets that need each other in a ring, and all that need one of them, cannot be built: leave them out, "
            "and write their names to /app/blocked.txt, sorted, one in each line."
        )
    return "\n".join(wishes)


def _order(needs: dict[str, list[str]]) -> list[str]:
    ready = sorted(name for name in needs if not needs[name])
    done: list[str] = []
    while ready:
        done.append(heapq.heappop(ready))
        for name, others in needs.items():
            if done[-1] in others and set(others) <= set(done):
                heapq.heappush(ready, name)
    return done


def _reached(goal: str, needs: dict[str, list[str]]) -> set[str]:
    return {goal}.union(*(_reached(name, needs) for name in needs[goal]))


_SOLVE_ORDER = """
needs = {}
for line in open("deps.txt"):
    name, _, others = line.partition(":")
    needs.setdefault(name.strip(), set()).update(others.split())
for name in {n for others in needs.values() for n in others}:
    needs.setdefault(name, set())
order = []
while ready := sorted(n for n in needs if n not in order and needs[n] <= set(order)):
    order.append(ready[0])
if LEVEL == 5:
    open("blocked.txt", "w").writelines(f"{name}\\n" for name in sorted(set(needs) - set(order)))
if LEVEL == 4:
    wanted = {GOAL}
    while more := {n for name in wanted for n in needs[name]} - wanted:
        wanted |= more
    order = [name for name in order if name in wanted]
open("order.txt", "w").writelines(f"{name}\\n" for name in order)
"""


FAMILY = Family(
    name="build-order",
    suite="terminal",
    make=_build_order,
    levels=(
        "a chain of four",
        "eight targets",
        "twelve, some not declared",
        "eighteen, of which one goal's are wanted",
        "twenty-four with a ring",
    ),
)
