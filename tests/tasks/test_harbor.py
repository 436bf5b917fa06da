from pathlib import Path

import pytest

from muster.errors import TaskError
from muster.tasks.harbor import load_directory, load_task
from tasks.task_directory import write_task

FULL = """
schema_version = "1.4"
artifacts = ["/app/out"]
[task]
name = "org/full"
keywords = ["files", "b"]
[metadata]
difficulty = "easy"
tags = ["a", "b"]
family = "copying"
max_turns = 3
[agent]
timeout_sec = 90
[verifier]
timeout_sec = 12.5
env = { MODE = "${MODE:-strict}", TOKEN = "x${TOKEN}" }
[environment]
build_timeout_sec = 300
cpus = 2
memory_mb = 512
storage = "1G"
workdir = "/srv"
allow_internet = false
env = { LANG = "C" }
[environment.future_table]
anything = 1
"""


def problem(root: Path, **changes: str) -> str:
    """The message of the `TaskError` that loading this task raises; one line."""
    with pytest.raises(TaskError) as caught:
        load_task(write_task(root, **changes))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_minimal_task_gets_the_defaults(tmp_path):
    task = load_task(write_task(tmp_path))
    assert (task.id, task.instruction, task.family, task.tags) == ("one", "Do it.", "", ())
    assert (task.max_turns, task.agent_timeout_s, task.solution) == (None, None, None)
    assert task.verifier.tests == tmp_path / "one" / "tests"
    assert task.verifier.timeout_s == task.image.build_timeout_s == 600.0
    assert task.image.dockerfile == tmp_path / "one" / "environment" / "Dockerfile"
    assert (task.limits.cpus, task.limits.memory_bytes, task.limits.disk_bytes) == (None, None, None)


def test_a_full_task_is_read_whole_and_unknown_keys_are_accepted(tmp_path):
    directory = write_task(tmp_path, toml=FULL, **{"solution/solve.sh": "true\n"})
    task = load_task(directory, variables={"TOKEN": "7"})
    assert task.metadata == {
        "difficulty": "easy",
        "tags": ["a", "b"],
        "family": "copying",
        "max_turns": 3,
        "name": "org/full",
        "network_mode": "no-network",
    }
    assert (task.family, task.max_turns, task.tags) == ("copying", 3, ("a", "b", "files"))
    assert task.agent_timeout_s == 90.0
    assert (task.verifier.timeout_s, task.verifier.env) == (12.5, {"MODE": "strict", "TOKEN": "x7"})
    assert (task.image.env, task.image.workdir, task.image.build_timeout_s) == ({"LANG": "C"}, "/srv", 300.0)
    assert (task.limits.cpus, task.limits.memory_bytes, task.limits.disk_bytes) == (2.0, 2**29, 2**30)
    assert task.solution == directory / "solution"


@pytest.mark.parametrize(("text", "expected"), [("2G", 2**31), ("512M", 2**29), ("64K", 2**16), ("1.5Gi", 3 * 2**29)])
def test_deprecated_sizes_are_understood(tmp_path, text, expected):
    task = load_task(write_task(tmp_path, toml=f'[environment]\nmemory = "{text}"\n'))
    assert task.limits.memory_bytes == expected


def test_a_deprecated_size_may_repeat_the_new_one(tmp_path):
    task = load_task(write_task(tmp_path, toml='[environment]\nmemory = "2G"\nmemory_mb = 2048\n'))
    assert task.limits.memory_bytes == 2**31


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ('[environment]\nmemory = "2G"\nmemory_mb = 512\n', "environment.memory: '2G' contradicts memory_mb = 512"),
        ('[environment]\nstorage = "lots"\n', "environment.storage: expected a size such as '2G'"),
        ('[environment]\ncpus = "two"\n', "environment.cpus: expected a valid number, found 'two'"),
        ("[environment]\nmemory_mb = 1.5\n", "environment.memory_mb: expected a valid integer, found 1.5"),
        ("[agent]\ntimeout_sec = true\n", "agent.timeout_sec: expected a valid number, found True"),
        ("[agent]\ntimeout_sec = inf\n", "agent.timeout_sec: expected a finite number, found inf"),
        ("[verifier]\ntimeout_sec = 0\n", "verifier.timeout_sec: expected greater than 0, found 0"),
        ("[verifier]\nenv = { A = 1 }\n", "verifier.env.A: expected a valid string, found 1"),
        ("environment = 3\n", "environment: expected a valid dictionary or instance of EnvironmentTable, found 3"),
        ("[metadata]\nmax_turns = 0\n", "metadata.max_turns: expected a whole number of 1 or more, found 0"),
        ("[metadata]\nmax_turns = true\n", "metadata.max_turns: expected a whole number of 1 or more, found True"),
        ("[metadata]\nfamily = 7\n", "metadata.family: expected a string, found 7"),
        ('[metadata]\ntags = "a"\n', "metadata.tags: expected a list of strings, found 'a'"),
        (
            '[environment]\nallow_internet = true\nnetwork_mode = "no-network"\n',
            "environment.allow_internet: contradicts network_mode = 'no-network'",
        ),
        ('[environment]\nworkdir = "app"\n', "environment.workdir: expected an absolute path, found 'app'"),
        ("[environment.healthcheck]\nretries = 2\n", "environment.healthcheck.command: missing"),
        ('[environment]\nenv = { A = "${HOME}" }\n', "environment.env: ${HOME} has no value"),
    ],
)
def test_a_wrong_value_names_the_file_the_key_and_what_was_expected(tmp_path, toml, expected):
    assert problem(tmp_path, toml=toml).startswith(f"{tmp_path / 'one' / 'task.toml'}: {expected}")


def test_two_wrong_values_are_both_named(tmp_path):
    message = problem(tmp_path, toml='[agent]\ntimeout_sec = "x"\n[environment]\ncpus = -1\n')
    assert "agent.timeout_sec" in message
    assert "environment.cpus" in message


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[environment]\nos = "windows"\n', "environment.os"),
        ("[environment]\ngpus = 1\n", "environment.gpus"),
        ("[environment.tpu]\ntype = 'v6e'\n", "environment.tpu"),
        ("[[environment.mcp_servers]]\nname = 'x'\n", "environment.mcp_servers"),
        ("[verifier.environment]\ngpus = 2\n", "verifier.environment.gpus"),
        (
            "[verifier]\nenvironment_mode = 'separate'\n[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n",
            "verifier.collect.0.service",
        ),
    ],
)
def test_what_muster_cannot_honour_is_refused_and_not_ignored(tmp_path, toml, key):
    message = problem(tmp_path, toml=toml)
    assert f"task.toml: {key}: " in message
    assert "not supported yet" in message


@pytest.mark.parametrize(("user", "expected"), [('"node"', "node"), ("1000", "1000"), ('"app:www"', "app:www")])
def test_users_have_names_or_numbers(tmp_path, user, expected):
    task = load_task(write_task(tmp_path, toml=f"[agent]\nuser = {user}\n[verifier]\nuser = {user}\n"))
    assert (task.image.user, task.verifier.user) == (expected, expected)


@pytest.mark.parametrize("user", ['"a; id"', "-1", '""', '"-u"'])
def test_a_user_that_is_none_is_refused(tmp_path, user):
    assert "agent.user: expected a user's name or number" in problem(tmp_path, toml=f"[agent]\nuser = {user}\n")


def test_broken_toml_gives_the_line_where_editors_find_it(tmp_path):
    assert problem(tmp_path, toml="a = 1\nb = = 2\n") == f"{tmp_path}/one/task.toml:2:5: not TOML: Invalid value"


def test_toml_that_ends_too_early_is_named_too(tmp_path):
    assert "task.toml: not TOML: Expected" in problem(tmp_path, toml="[environment")


def test_bytes_that_are_not_text_are_a_task_error(tmp_path):
    for name in ("task.toml", "instruction.md"):
        directory = write_task(tmp_path / name)
        (directory / name).write_bytes(b"ab\xff")
        with pytest.raises(TaskError, match=f"{name}: not UTF-8 at byte 2"):
            load_task(directory)


@pytest.mark.parametrize("path", ["task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_missing_file_is_named(tmp_path, path):
    directory = write_task(tmp_path)
    (directory / path).unlink()
    with pytest.raises(TaskError, match=f"{path}: missing"):
        load_task(directory)


@pytest.mark.parametrize("path", ["task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_the_host_never_reads_through_a_link(tmp_path, path):
    secret = tmp_path / "secret"
    secret.write_text("root:x")
    directory = write_task(tmp_path)
    (directory / path).unlink()
    (directory / path).symlink_to(secret)
    with pytest.raises(TaskError, match=f"{path}: reached through a symbolic link"):
        load_task(directory)


def test_an_empty_instruction_is_refused(tmp_path):
    assert "instruction.md: empty" in problem(tmp_path, **{"instruction.md": " \n"})


def test_what_has_no_use_here_is_noted_and_not_refused(tmp_path):
    task = load_task(write_task(tmp_path, toml='[environment]\nskills_dir = "/skills"\n'))
    assert task.metadata == {"skills_dir": "/skills"}


def test_the_solution_has_an_environment_of_its_own(tmp_path):
    toml = '[solution]\nenv = { KEY = "${KEY:-none}" }\n'
    task = load_task(write_task(tmp_path, toml=toml, **{"solution/solve.sh": "true\n"}))
    assert task.solution_env == {"KEY": "none"}


def test_paths_that_the_task_owns_are_absolute(tmp_path):
    task = load_task(write_task(tmp_path, toml='[metadata]\nowned_paths = ["/usr/local/bin"]\n'))
    assert task.verifier.owned == ("/usr/local/bin",)
    for path in ("bin", "/"):
        message = problem(tmp_path, toml=f'[metadata]\nowned_paths = ["{path}"]\n')
        assert f"metadata.owned_paths: expected absolute paths below /, found '{path}'" in message


def test_a_directory_loads_sorted_and_collects_every_problem(tmp_path):
    for name in ("b", "a", "c"):
        write_task(tmp_path, name)
    write_task(tmp_path, "broken-1", toml="x =")
    write_task(tmp_path, "broken-2", toml="[environment]\ngpus = 2\n")
    (tmp_path / "notes").mkdir()
    loaded = load_directory(tmp_path)
    assert [task.id for task in loaded.tasks] == ["a", "b", "c"]
    assert ["broken-1" in str(loaded.problems[0]), "broken-2" in str(loaded.problems[1])] == [True, True]
    with pytest.raises(TaskError, match=r"2 of 5 tasks are broken\n.*broken-1.*\n.*broken-2"):
        load_directory(tmp_path, strict=True)


def test_a_single_task_directory_is_a_directory_of_one(tmp_path):
    assert [task.id for task in load_directory(write_task(tmp_path)).tasks] == ["one"]


def test_a_link_to_a_task_is_a_task_under_its_own_name(tmp_path):
    (tmp_path / "two").symlink_to(write_task(tmp_path))
    assert [task.id for task in load_directory(tmp_path).tasks] == ["one", "two"]


def test_a_directory_without_tasks_is_an_error(tmp_path):
    with pytest.raises(TaskError, match=r"no task\.toml in it"):
        load_directory(tmp_path)
    with pytest.raises(TaskError, match="no such directory"):
        load_directory(tmp_path / "nowhere")
