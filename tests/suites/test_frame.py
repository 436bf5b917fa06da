"""All generated suites: the same bytes from the same seed, splits apart, whole or not at all, told in full."""

from __future__ import annotations

import os
import re
import resource
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from muster.errors import TaskError
from muster.tasks.harbor import load_directory, load_task
from muster_suites.archives import gzip_file, tar_file, zip_file
from muster_suites.catalogue import SUITES
from muster_suites.frame import Draw, Family, Instance
from muster_suites.repo.history import History
from muster_suites.repo.subjects import SUBJECTS, Subject, answer
from muster_suites.words import HELDOUT, TRAIN
from muster_suites.write import generate, instances
from suites.grading import draw, several

BOTH = ["terminal", "repo"]
FAMILIES = [family for suite in BOTH for family in SUITES[suite]]


def by_name(families: list[Family]) -> dict[str, Family]:
    return {family.name: family for family in families}


def test_each_suite_has_at_least_six_families_of_its_own_names() -> None:
    assert all(len(families) >= 6 for families in SUITES.values())
    everything = [family for families in SUITES.values() for family in families]
    assert len(by_name(everything)) == len(everything)
    assert all(family.suite == suite for suite, families in SUITES.items() for family in families)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_instances_are_distinct_and_splits_share_none(family: Family) -> None:
    for difficulty in (1, 3, 5):
        train = [repr(instance) for instance in several(family, difficulty, 6)]
        heldout = [repr(instance) for instance in several(family, difficulty, 6, split="heldout")]
        assert len({*train, *heldout}) == 12
        assert train == [repr(instance) for instance in several(family, difficulty, 6)], "the same again"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_split_uses_the_names_of_the_other(family: Family) -> None:
    def words(instance: Instance) -> set[str]:
        return set(re.findall(r"[a-z]+", f"{instance.instruction} {' '.join(instance.files)}"))

    train, heldout = words(draw(family, 3)), words(draw(family, 3, split="heldout"))
    prose = train & heldout  # ordinary words of the instruction, some of which are in a pool as well
    assert not (heldout - prose) & set(TRAIN)
    assert not (train - prose) & set(HELDOUT)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_instructions_name_what_is_expected_and_grow_with_the_difficulty(family: Family) -> None:
    for difficulty in (1, 5):
        instance = draw(family, difficulty)
        assert re.search(r"/app/|http://", instance.instruction), "a path in full"
        assert 40 < len(instance.instruction) < 3000
    assert draw(family, 1).max_turns <= draw(family, 5).max_turns


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_generated(tmp_path: Path) -> None:
    def digests(name: str, seed: int, suites: list[str], **choice: object) -> dict[str, str]:
        made = generate(tmp_path / name, suites=suites, seed=seed, per_family=1, split="train", **choice)  # type: ignore[arg-type]
        return {task.name: load_task(task).digest for task in made}

    mask = os.umask(0o077)
    try:
        first = digests("a", 1, BOTH)
    finally:
        os.umask(mask)
    assert digests("b", 1, ["repo"]).items() <= first.items()
    assert digests("c", 1, BOTH, families=["crontab", "bisect"]).items() <= first.items()
    assert not set(digests("d", 2, BOTH).values()) & set(first.values())
    modes = [{p.relative_to(tmp_path / n): p.stat().st_mode for p in (tmp_path / n).rglob("*")} for n in ("a", "b")]
    assert modes[1].items() <= modes[0].items()


def test_every_task_loads_and_says_what_it_is(tmp_path: Path) -> None:
    generate(tmp_path / "suite", suites=BOTH, seed=3, per_family=1, split="heldout", difficulty=4)
    tasks = load_directory(tmp_path / "suite", strict=True).tasks
    assert len(tasks) == sum(len(SUITES[suite]) for suite in BOTH)
    for task in tasks:
        family = by_name(FAMILIES)[task.family]
        assert task.id == f"{family.name}-heldout-d4-0000"
        assert (task.metadata["suite"], task.metadata["difficulty"]) == (family.suite, 4)
        assert task.max_turns is not None and task.solution is not None
        assert task.limits.memory_bytes == 512 * 2**20 and task.limits.egress == ()
        for file in task.verifier.tests.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, "for its owner alone"


def test_without_a_suite_it_is_the_starter_suite_with_the_same_bytes(tmp_path: Path) -> None:
    ours = generate(tmp_path / "a", suites=("starter",), seed=4, per_family=1, split="train")
    theirs = generate(tmp_path / "b", seed=4, per_family=1, split="train")
    assert [load_task(task).digest for task in ours] == [load_task(task).digest for task in theirs]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"suites": ["nonsense"]}, "unknown suite nonsense; known: starter, terminal, repo"),
        ({"families": ["nonsense"]}, "unknown family nonsense; known: log-report, "),
        ({"per_family": 0}, "per_family = 0: write 1 or more"),
        ({"difficulty": 6}, "difficulty = 6: write 1 to 5"),
        ({"suites": ["starter", "repo"]}, "suite starter: generate it alone"),
        ({"suites": ["starter"], "difficulty": 2}, "suite starter: generate it alone and without a difficulty"),
    ],
)
def test_wrong_arguments_are_explained_and_nothing_is_written(
    choice: dict[str, object], message: str, tmp_path: Path
) -> None:
    arguments: dict[str, object] = {"suites": BOTH, "seed": 0, "per_family": 1, "split": "train"} | choice
    with pytest.raises(TaskError, match=re.escape(message)):
        generate(tmp_path / "suite", **arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(TaskError, match="exists"):
        generate(tmp_path, suites=BOTH, seed=0, per_family=1, split="train")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_suite_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))  # the judge does not fit
    try:
        with pytest.raises(OSError, match="File too large"):
            generate(tmp_path / "suite", suites=["repo"], seed=0, per_family=1, split="train")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_family_that_runs_out_of_instances_says_so() -> None:
    once = Instance(instruction="Do it.", files={}, tests={"check.py": ""}, solution="true", max_turns=1)
    family = Family(name="once", suite="terminal", make=lambda draw: once, levels=("", "", "", "", ""))
    drawn = instances(family, seed=0, split="heldout", difficulty=1)
    assert next(drawn) is once
    with pytest.raises(TaskError, match="family once: no more than 1 heldout instances"):
        next(drawn)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_documentation_says_what_the_difficulties_mean(family: Family) -> None:
    page = Path(__file__).parents[2] / "docs/reference/suites.md"
    assert f"| `{family.name}` | {' | '.join(family.levels)} |" in page.read_text(encoding="utf-8")


def test_names_of_a_draw_do_not_repeat() -> None:
    chance = Draw(difficulty=1, split="heldout", rng=np.random.default_rng(0))
    names = [*chance.words(40), *chance.pairs(500)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_each_bug_of_a_function_shows_at_one_of_its_edges(subject: Subject) -> None:
    for bug in subject.bugs:
        assert any(subject.shows(bug, edge) for edge in subject.edges), bug
    assert any("value" in answer(subject.function, edge) for edge in subject.edges)


def test_git_gives_a_history_the_names_that_were_computed(tmp_path: Path) -> None:
    history = History()
    first = history.commit({"a.txt": "x\n", "a/b.txt": "ü\n", "a-b": ""}, "First\n\nwith a body")
    second = history.commit({"a.txt": "y\n"}, "Second", [first])
    merge = history.commit({"a.txt": "y\n", "b": "z"}, "Merge", [second, first])
    history.branches |= {"main": merge, "side": first}
    history.tags["v1"] = second

    def git(*words: str, data: str = "") -> str:
        argv = ["git", "-C", str(tmp_path), *words]
        return subprocess.run(argv, input=data, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    git("fast-import", "--quiet", "--done", data=history.stream())
    assert [git("rev-parse", ref) for ref in ("main", "side", "v1")] == [merge, first, second]
    assert git("rev-parse", "main^{tree}") == history.commits[merge].tree
    assert git("log", "-1", "--format=%B", "side") == "First\n\nwith a body"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000])
def test_archives_are_ones_that_the_usual_tools_open(size: int, tmp_path: Path) -> None:
    data = bytes(i % 251 for i in range(size))
    (tmp_path / "x.gz").write_bytes(gzip_file(data))
    assert subprocess.run(["gzip", "-dc", "x.gz"], cwd=tmp_path, capture_output=True, check=True).stdout == data
    members = [("a/b.txt", data), ("c.txt", b"c")]
    (tmp_path / "x.tar").write_bytes(tar_file(members))
    (tmp_path / "x.zip").write_bytes(zip_file(members))
    subprocess.run("tar -xf x.tar && python3 -m zipfile -e x.zip zip", shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / "a" / "b.txt").read_bytes() == (tmp_path / "zip" / "a" / "b.txt").read_bytes() == data
