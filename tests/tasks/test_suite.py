import pytest

from muster.errors import TaskError
from muster.tasks.config import SuiteConfig
from muster.tasks.suite import load_suites
from muster_suites.write import generate
from tasks.task_directory import write_task


def test_without_paths_the_starter_suite_is_generated_once(tmp_path):
    config = SuiteConfig(per_family=2, heldout_per_family=1, families=("write-word",))
    first = load_suites(config, tmp_path / "run", seed=1, generate=generate)
    assert (len(first.train), len(first.heldout)) == (2, 1)
    assert load_suites(config, tmp_path / "run", seed=1, generate=generate).digest == first.digest


def test_a_task_in_both_suites_is_refused_by_name(tmp_path):
    write_task(tmp_path / "train")
    write_task(tmp_path / "heldout", "two")
    with pytest.raises(TaskError, match="held-out tasks that are also trained on: two"):
        load_suites(
            SuiteConfig(train=tmp_path / "train", heldout=tmp_path / "heldout"), tmp_path, seed=0, generate=generate
        )


def test_variables_of_the_configuration_reach_the_tasks_and_nothing_else_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "of the host")
    write_task(tmp_path / "train", toml='[verifier]\nenv = { KEY = "${TOKEN}" }\n')
    (task,) = load_suites(
        SuiteConfig(train=tmp_path / "train", variables={"TOKEN": "7"}), tmp_path, seed=0, generate=generate
    ).train
    assert task.verifier.env == {"KEY": "7"}
    with pytest.raises(TaskError, match=r"verifier\.env: \$\{TOKEN\} has no value"):
        load_suites(SuiteConfig(train=tmp_path / "train"), tmp_path, seed=0, generate=generate)
