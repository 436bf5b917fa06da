"""The starter suite, with its scripts run for real: in a temporary directory, /app and /logs moved there."""

import re
import resource
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from muster.errors import TaskError
from muster.rollout import prompts
from muster.tasks.harbor import load_directory, load_task
from muster_suites.frame import Family
from muster_suites.starter import STARTER as FAMILIES
from muster_suites.starter.family import TreeChange, starter_family
from muster_suites.words import HELDOUT, SHOTS, TRAIN
from muster_suites.write import generate, instances

INSTANCES = 3
MAX_TURNS = {family.name: next(instances(family, seed=0, split="train")).max_turns for family in FAMILIES}


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("starter") / "suite"
    generate(out, seed=7, per_family=INSTANCES, split="train")
    return out


def tasks_of(suite: Path, family: Family) -> list[Path]:
    return sorted(suite.glob(f"{family.name}-train-*"))


def reward(task: Path, place: Path, *, after: str = "true", solve: bool = False) -> str:
    """Reward in tests/test.sh's words, once the solution (if asked) and then `after` were run in a fresh /app."""
    app, logs = place / "app", place / "logs"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(task / "environment" / "files", app)
    scripts = [(task / "solution" / "solve.sh").read_text()] if solve else []
    for script in [*scripts, after, (task / "tests" / "test.sh").read_text()]:
        moved = re.sub(r"/logs\b", str(logs), re.sub(r"/app\b", str(app), script))
        subprocess.run(["/bin/sh", "-c", moved], cwd=app, check=False, capture_output=True)
    return (logs / "verifier" / "reward.txt").read_text()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_solution_passes_and_doing_nothing_fails(family, suite, tmp_path):
    tasks = tasks_of(suite, family)
    assert len(tasks) == INSTANCES
    for task in tasks:
        assert reward(task, tmp_path / "run", solve=True) == "1\n"
        assert reward(task, tmp_path / "run") == "0\n"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_solution_that_does_too_much_fails(family, suite, tmp_path):
    task = tasks_of(suite, family)[0]
    for extra in (
        "touch leftover",
        "mkdir leftover",
        "echo 1 > .hidden",
        "rm -r ./*",
        'for f in $(find . -type f); do k="/app/../${f##*/}"; mv "$f" "$k"; ln -s "$k" "$f"; done',
        "echo 1 > /logs/verifier/reward.txt; rm -r ./*",
    ):
        assert reward(task, tmp_path / "run", solve=True, after=extra) == "0\n", extra


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_file_with_other_content_fails(family, suite, tmp_path):
    task = tasks_of(suite, family)[0]
    grow_all = 'for f in $(find . -type f); do echo more >> "$f"; done'
    assert reward(task, tmp_path / "run", solve=True, after=grow_all) == "0\n"


def test_every_task_loads_and_says_its_family_and_turns(suite):
    tasks = load_directory(suite, strict=True).tasks
    assert len(tasks) == INSTANCES * len(FAMILIES)
    for task in tasks:
        assert task.max_turns == MAX_TURNS[task.family]
        assert task.solution is not None
        assert (task.limits.memory_bytes, task.metadata["network_mode"]) == (256 * 2**20, "no-network")


def test_dockerfiles_use_nothing_but_from_workdir_copy_and_env(suite):
    for dockerfile in suite.glob("*/environment/Dockerfile"):
        words = {line.split()[0] for line in dockerfile.read_text().splitlines()}
        assert words <= {"FROM", "WORKDIR", "COPY", "ENV"}


def test_the_suite_has_variety():
    assert len(FAMILIES) >= 14
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert sum(turns >= 2 for turns in MAX_TURNS.values()) >= 3
    assert 3 in MAX_TURNS.values()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    def digests(name: str, seed: int, **choice) -> dict[str, str]:
        made = generate(tmp_path / name, seed=seed, per_family=2, split="train", **choice)
        return {task.name: load_task(task).digest for task in made}

    first = digests("a", 1)
    assert digests("b", 1) == first
    chosen = digests("c", 1, families=["copy-file"])
    assert chosen.items() <= first.items(), "what else is generated does not matter"
    assert not set(digests("d", 2).values()) & set(first.values())


def test_splits_and_shots_share_no_word():
    assert not set(TRAIN) & set(HELDOUT)
    assert not set(SHOTS) & (set(TRAIN) | set(HELDOUT))
    assert len(set(TRAIN)) >= 60
    assert len(set(HELDOUT)) >= 30


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_instance_repeats_and_none_is_in_both_splits(family):
    train = [repr(i) for i in islice(instances(family, seed=0, split="train"), 200)]
    heldout = [repr(i) for i in islice(instances(family, seed=0, split="heldout"), 60)]
    assert len(set(train)) == len(train)
    assert len(set(heldout)) == len(heldout)
    assert not set(train) & set(heldout)


def test_file_names_of_the_few_shot_prompt_are_in_no_task():
    prompt = " ".join(message["content"] for message in prompts.STARTER_PROMPT)
    words = set(prompt.replace(".txt", " ").replace(".", " ").replace("/", " ").split())
    assert words & set(SHOTS)
    assert not words & (set(TRAIN) | set(HELDOUT))


def test_a_directory_that_exists_is_left_alone(tmp_path):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine").write_text("keep")
    with pytest.raises(TaskError, match="suite: exists"):
        generate(tmp_path / "suite", seed=0, per_family=1, split="train")
    assert [path.name for path in tmp_path.rglob("*")] == ["suite", "mine"]


def test_a_suite_is_written_whole_or_not_at_all(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))  # a test script does not fit
    try:
        with pytest.raises(OSError, match="File too large"):
            generate(tmp_path / "suite", seed=0, per_family=2, split="train")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_explained(tmp_path):
    with pytest.raises(TaskError, match="unknown family nonsense; known: make-directory, "):
        generate(tmp_path / "s", seed=0, per_family=1, split="train", families=["nonsense", "copy-file"])
    with pytest.raises(TaskError, match="per_family = 0: write 1 or more"):
        generate(tmp_path / "s", seed=0, per_family=0, split="train")


def test_a_family_that_runs_out_of_instances_says_so():
    once = TreeChange(instruction="Delete a.txt.", before={"a.txt": ""}, after={}, solution="rm a.txt")
    drawn = instances(starter_family("once", lambda words: once), seed=0, split="heldout")
    assert next(drawn).files == {"files/a.txt": ""}
    with pytest.raises(TaskError, match="family once: no more than 1 heldout instances"):
        next(drawn)
