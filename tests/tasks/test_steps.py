from pathlib import Path

import pytest

from muster.errors import TaskError
from muster.tasks.harbor import load_task
from muster.types import HealthCheck, Task
from tasks.task_directory import write_task

TWO = """
multi_step_reward_strategy = "final"
artifacts = ["/all"]
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 30
user = "judge"
env = { FROM = "task" }
[[steps]]
name = "first"
min_reward = 0.5
[steps.agent]
timeout_sec = 10
[[steps]]
name = "second"
min_reward = { reward = 1 }
artifacts = ["/second"]
[steps.healthcheck]
command = "true"
[steps.verifier]
timeout_sec = 20
env = { FROM = "step" }
network_mode = "public"
"""
FILES = {
    "steps/first/instruction.md": "Begin.\n",
    "steps/first/tests/test.sh": "echo 1\n",
    "steps/first/workdir/setup.sh": "touch ready\n",
    "steps/first/solution/solve.sh": "true\n",
    "steps/second/instruction.md": "Go on.\n",
    "tests/helper.sh": "true\n",
}


def write(root: Path, toml: str = TWO, **files: str) -> Path:
    directory = write_task(root, toml=toml, **(FILES | files))
    (directory / "instruction.md").unlink()
    return directory


def load(root: Path, toml: str = TWO, **files: str) -> Task:
    return load_task(write(root, toml, **files))


def test_each_step_has_its_own_instruction_tests_and_time(tmp_path):
    task = load(tmp_path)
    first, second = task.steps
    root = tmp_path / "one"
    assert (task.instruction, task.verifier, task.step_reward) == ("Begin.", first.verifier, "final")
    assert (first.name, first.agent_timeout_s, first.min_reward) == ("first", 10.0, 0.5)
    assert (first.setup, first.solution) == (root / "steps/first/workdir", root / "steps/first/solution")
    assert (second.instruction, second.agent_timeout_s, second.min_reward) == ("Go on.", None, 1.0)
    assert (second.setup, second.solution, second.health) == (None, None, HealthCheck(command="true"))


def test_what_a_step_shares_lies_below_its_own_tests(tmp_path):
    first, second = load(tmp_path).steps
    root = tmp_path / "one"
    assert (first.verifier.tests, first.verifier.shared_tests) == (root / "steps/first/tests", root / "tests")
    assert (second.verifier.tests, second.verifier.shared_tests) == (root / "tests", None)


def test_a_step_takes_from_the_task_what_it_leaves_out_but_the_time(tmp_path):
    first, second = (step.verifier for step in load(tmp_path).steps)
    assert (first.env, first.user, first.timeout_s, first.egress) == ({"FROM": "task"}, "judge", 600.0, ())
    assert (second.env, second.user, second.timeout_s, second.egress) == ({"FROM": "step"}, "judge", 20.0, ("*",))


def test_one_step_may_have_a_separate_verifier(tmp_path):
    toml = TWO.replace("[steps.verifier]", '[steps.verifier]\nenvironment_mode = "separate"')
    first, second = (step.verifier for step in load(tmp_path, toml).steps)
    assert first.image is None
    assert second.image is not None
    assert second.artifacts == ("/logs/artifacts", "/all", "/second")


def test_one_step_may_be_shared_where_the_task_is_separate(tmp_path):
    toml = TWO.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"', 1)
    toml = toml.replace("[steps.verifier]", '[steps.verifier]\nenvironment_mode = "shared"')
    first, second = (step.verifier for step in load(tmp_path, toml).steps)
    assert first.image is not None
    assert second.image is None


def test_a_threshold_may_be_about_single_criteria(tmp_path):
    second = load(tmp_path, TWO.replace("{ reward = 1 }", "{ style = 0.5, reward = 1 }")).steps[1]
    assert (second.min_reward, second.min_criteria) == (1.0, {"style": 0.5})


def test_the_reward_is_the_mean_of_the_steps_unless_the_task_says_otherwise(tmp_path):
    assert load(tmp_path, TWO.replace('multi_step_reward_strategy = "final"', "")).step_reward == "mean"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "second"', 'name = "First"', "steps.1.name: 'First' is there twice"),
        ('name = "second"', 'name = "../x"', "steps.1.name: '../x' is no plain directory name"),
        ('name = "second"', 'name = ".."', "steps.1.name: '..' is no plain directory name"),
        ("{ reward = 1 }", "'high'", "steps.1.min_reward: expected a valid dictionary, found 'high'"),
        ("timeout_sec = 10", 'user = "x"', "steps.0.agent.user: a user for this step alone is not supported yet"),
        ("timeout_sec = 10", 'network_mode = "public"', "steps.0.agent.network_mode: a network for this step alone"),
        ("timeout_sec = 10", "timeout_sec = 0", "steps.0.agent.timeout_sec: expected greater than 0"),
        ('"final"', '"best"', "multi_step_reward_strategy: expected 'mean' or 'final', found 'best'"),
    ],
)
def test_a_wrong_step_names_the_key_and_the_fix(tmp_path, old, new, expected):
    with pytest.raises(TaskError) as caught:
        load(tmp_path, TWO.replace(old, new))
    assert expected in str(caught.value)


def test_a_step_without_any_test_script_is_an_error(tmp_path):
    directory = write(tmp_path)
    (directory / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"steps/second/tests/test\.sh: missing"):
        load_task(directory)


def test_a_step_without_an_instruction_is_an_error(tmp_path):
    directory = write(tmp_path)
    (directory / "steps/second/instruction.md").unlink()
    with pytest.raises(TaskError, match=r"steps/second/instruction\.md: missing"):
        load_task(directory)


def test_no_link_goes_into_a_sandbox_between_steps(tmp_path):
    directory = write(tmp_path)
    (directory / "steps/first/workdir/passwd").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match=r"workdir/passwd: neither a plain file nor a directory"):
        load_task(directory)


def test_a_step_directory_that_is_a_link_is_refused(tmp_path):
    directory = write(tmp_path)
    (directory / "steps/second").rename(tmp_path / "elsewhere")
    (directory / "steps/second").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TaskError, match=r"steps/second/instruction\.md: reached through a symbolic link"):
        load_task(directory)


@pytest.mark.parametrize("tests", ["tests", "steps/first/tests"])
def test_tests_are_never_those_of_somewhere_else(tmp_path, tests):
    directory = write(tmp_path)
    (directory / tests).rename(tmp_path / "elsewhere")
    (directory / tests).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TaskError, match=rf"{tests}.*: reached through a symbolic link"):
        load_task(directory)
