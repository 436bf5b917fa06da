"""Real tasks for a batch of programs: a verifier that checks what each attempt's commands left behind.

    groups ─► directory/task00007/tests/{test.sh, plan} ─► Task          (plan: a line a sibling: turns, seconds)

Law: a reward is written only if every command of the attempt left its trace, in order; a lost, repeated or invented one
gives none. So the outcomes themselves prove that each arm did the same work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from muster.lab.bench.ttb.real.words import Groups, WordTokenizer, instruction
from muster.lab.collection.collection import numbered
from muster.lab.collection.workload import Program
from muster.types import ImageSpec, Task, VerifierSpec

_TEST = """\
#!/bin/bash
# The log holds 1 to the number of turns, and its checksum: then the answer decides.
read -r me < me
read -r turns seconds < <(sed -n "$((me + 1))p" /tests/plan)
sleep "$seconds"
[[ $(< log) == $(seq "$turns") ]] && sha256sum --check --status sum || exit 1
if [[ -e answer ]]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
VERIFY_TIMEOUT_S = 120.0


def write_tasks(groups: Groups, directory: Path) -> list[Task]:
    """One task a group, in order."""
    tokenizer = WordTokenizer()
    return [_task(index, siblings, directory, tokenizer) for index, siblings in enumerate(groups)]


def _task(index: int, siblings: Sequence[Program], directory: Path, tokenizer: WordTokenizer) -> Task:
    task = numbered(index)
    tests = directory / task.id / "tests"
    tests.mkdir(parents=True)
    plan = "".join(f"{len(p.turns)} {p.verify_s:.4f}\n" for p in siblings)
    (tests / "plan").write_text(plan, encoding="utf-8")
    (tests / "test.sh").write_text(_TEST, encoding="utf-8")
    return replace(
        task,
        instruction=instruction(index, siblings[0].prompt_tokens, tokenizer),
        root=tests.parent,
        image=ImageSpec(docker_image=task.image.docker_image, workdir="/app"),
        verifier=VerifierSpec(tests=tests, timeout_s=VERIFY_TIMEOUT_S),
        digest=hashlib.sha256(f"{task.id}\n{plan}{_TEST}".encode()).hexdigest(),
    )
