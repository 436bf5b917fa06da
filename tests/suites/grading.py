"""Generated tasks, graded for real: a script as the agent, then the task's own tests in the real verifier."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.tasks.harbor import load_task
from muster.types import Outcome, Task
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier
from muster_suites.frame import Family, Instance
from muster_suites.words import Split
from muster_suites.write import instances, write_task


def draw(family: Family, difficulty: int, *, seed: int = 5, split: Split = "train") -> Instance:
    return next(instances(family, seed=seed, split=split, difficulty=difficulty))


def several(family: Family, difficulty: int, count: int, *, seed: int = 5, split: Split = "train") -> list[Instance]:
    return list(islice(instances(family, seed=seed, split=split, difficulty=difficulty), count))


def written(place: Path, family: Family, difficulty: int, **choice: int) -> Path:
    """One task directory."""
    directory = place / f"{family.name}-{difficulty}-{len(list(place.iterdir()))}"
    write_task(directory, family, draw(family, difficulty, **choice), difficulty)
    return directory


def grade(place: Path, tasks: list[Path], agents: Mapping[str, str]) -> dict[str, dict[str, Outcome]]:
    """Task name -> name of the agent -> outcome. An agent is bash source, run in the working directory; the word
    SOLVE in it stands for the reference solution."""

    async def main() -> dict[str, dict[str, Outcome]]:
        config = SandboxConfig(state_dir=place / "state", kill_grace_s=0.1)
        backend = NamespaceBackend(config)
        pool = Pool(backend, config)
        verifier = ScriptVerifier(pool, VerifierConfig(scratch_dir=place))
        try:
            found: dict[str, dict[str, Outcome]] = {}
            for directory in tasks:
                task = load_task(directory)
                found[task.id] = {n: await _outcome(backend, verifier, task, agent) for n, agent in agents.items()}
            return found
        finally:
            await pool.close()
            await backend.close()

    return clock.run(main())


async def _outcome(backend: NamespaceBackend, verifier: ScriptVerifier, task: Task, agent: str) -> Outcome:
    assert task.solution is not None
    pristine = await backend.prepare(task.image)
    sandbox = await backend.fork(pristine, limits=task.limits, label="agent")
    solution = (task.solution / "solve.sh").read_text()
    await sandbox.run(agent.replace("SOLVE", f"bash <<'SOLUTION_END'\n{solution}\nSOLUTION_END"), timeout_s=30)
    final = await sandbox.snapshot()
    await sandbox.close()
    return await verifier.grade(task, final, pristine)
