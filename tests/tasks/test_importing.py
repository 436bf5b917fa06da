"""The importer, on small tasks of our own in the legacy layout; converted test scripts are run for real."""

import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from muster.app.cli import app
from muster.errors import TaskError
from muster.tasks.harbor import load_task
from muster.tasks.importing import Imported, import_tasks, render, to_json

YAML = """
instruction: |
  Write 42 to answer.txt.
difficulty: easy
author_name: somebody
category: files
tags: [files, numbers]
parser_name: pytest
max_agent_timeout_sec: 120
max_test_timeout_sec: 30
expert_time_estimate_min: 5
canary: ignored
"""
COMPOSE = """
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - LEVEL=3
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
DEFAULT = {
    "task.yaml": YAML,
    "docker-compose.yaml": COMPOSE,
    "Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY data.txt ./\n",
    "data.txt": "41\n",
    "run-tests.sh": '#!/bin/bash\necho "= short test summary info ="; echo "PASSED all"\nbash $TEST_DIR/check.sh\n',
    "tests/check.sh": 'grep -qx 42 "$ANSWER"\n',
    "solution.sh": "#!/bin/bash\necho 42 > answer.txt\n",
}


def write(root: Path, name: str = "answer", without: tuple[str, ...] = (), **changes: str) -> Path:
    directory = root / name
    for path, text in ({**DEFAULT, **changes}).items():
        if path not in without:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
    return directory


def imported(root: Path, **changes: str) -> Path:
    """The Harbor directory of a task that is accepted."""
    (found,) = import_tasks(write(root / "src", **changes), root / "dst")
    assert found.problem is None, found.problem
    return root / "dst" / "answer"


def refusal(root: Path, without: tuple[str, ...] = (), **changes: str) -> str:
    (found,) = import_tasks(write(root / "src", without=without, **changes), root / "dst")
    assert found.problem is not None
    assert "\n" not in found.problem
    assert not list((root / "dst").iterdir()), "nothing is left of it"
    return found.problem


def files(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


def test_a_task_becomes_a_harbor_task_that_means_the_same(tmp_path):
    directory = imported(tmp_path)
    task = load_task(directory)
    assert task.instruction == "Write 42 to answer.txt."
    assert (task.agent_timeout_s, task.verifier.timeout_s) == (120.0, 30.0)
    assert (task.tags, task.metadata["difficulty"], task.metadata["expert_time_estimate_min"]) == (
        ("files", "numbers"),
        "easy",
        5.0,
    )
    assert task.image.env == {"LEVEL": "3"}
    assert task.verifier.env == {"TEST_DIR": "/tests"}
    assert (task.limits.egress, task.verifier.egress) == ((), ())
    assert task.solution is not None
    assert files(directory) == {
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "environment/data.txt",
        "tests/test.sh",
        "tests/run-tests.sh",
        "tests/check.sh",
        "solution/solve.sh",
    }
    assert os.access(directory / "tests/test.sh", os.X_OK)


@pytest.mark.parametrize(("answer", "reward"), [("42\n", "1\n"), ("41\n", "0\n")])
def test_the_reward_is_the_exit_code_and_not_what_the_tests_print(tmp_path, answer, reward):
    directory = imported(tmp_path)
    (tmp_path / "answer.txt").write_text(answer)
    script = (directory / "tests/test.sh").read_text()
    moved = re.sub(r"/logs\b", f"{tmp_path}/logs", re.sub(r"/tests\b", f"{directory}/tests", script))
    env = {"PATH": os.defpath, "TEST_DIR": f"{directory}/tests", "ANSWER": f"{tmp_path}/answer.txt"}
    done = subprocess.run(["bash", "-c", moved], env=env, capture_output=True, text=True, check=True)
    assert "PASSED all" in done.stdout
    assert (tmp_path / "logs/verifier/reward.txt").read_text() == reward


def test_tests_that_install_software_get_a_network_and_a_note(tmp_path):
    script = "# pip is not needed here\ncurl -LsSf https://example.org/uv.sh | sh\n"
    (found,) = import_tasks(write(tmp_path / "src", **{"run-tests.sh": script}), tmp_path / "dst")
    assert "verifier.network_mode = 'public'" in found.notes[0]
    task = load_task(tmp_path / "dst/answer")
    assert (task.limits.egress, task.verifier.egress) == ((), ("*",))


def test_only_what_the_dockerfile_names_of_tests_and_solution_is_in_the_image(tmp_path):
    dockerfile = "FROM x\nCOPY . /app/\nCOPY --chown=1:1 ./solution.sh \\\n  /opt/\nCOPY --from=a tests /t\n"
    (found,) = import_tasks(write(tmp_path / "src", Dockerfile=dockerfile), tmp_path / "dst")
    assert found.notes == ("its Dockerfile puts solution.sh into the image, where the agent can read it",)
    assert files(tmp_path / "dst/answer/environment") == {"Dockerfile", "data.txt", "solution.sh"}


def test_a_build_context_of_its_own_becomes_the_environment(tmp_path):
    compose = COMPOSE.replace("dockerfile: Dockerfile", "context: ./client\n      dockerfile: My.dockerfile\n").replace(
        "    image:", "      args: {A: 1}\n    working_dir: /srv\n    user: node\n    image:"
    )
    directory = imported(
        tmp_path,
        **{"docker-compose.yaml": compose, "client/My.dockerfile": "FROM y\n", "client/x/tests/y": "1\n"},
    )
    task = load_task(directory)
    assert files(directory / "environment") == {"Dockerfile", "My.dockerfile", "docker-compose.yaml", "x/tests/y"}
    assert (directory / "environment/Dockerfile").read_text() == "FROM y\n"
    assert (task.image.workdir, task.image.user, task.verifier.user) == ("/srv", "node", "root")
    assert task.image.build_args == {"A": "1"}


def test_a_service_with_a_health_check_keeps_what_it_runs(tmp_path):
    health = "    healthcheck: {test: curl -f localhost, interval: 2s}\n    entrypoint: [/start, $$x]\n    command:"
    compose = COMPOSE.replace("    command:", health).replace('"sh", "-c", "sleep infinity"', "serve")
    image = load_task(imported(tmp_path, **{"docker-compose.yaml": compose})).image
    assert image.health is not None
    assert (image.health.command, image.health.interval_s) == ("curl -f localhost", 2.0)
    assert (image.entrypoint, image.command) == (("/start", "$x"), ("serve",))


def test_a_ready_made_image_needs_no_dockerfile(tmp_path):
    compose = COMPOSE.replace("    build:\n      dockerfile: Dockerfile\n", "").replace(
        "${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}", "org/img:1"
    )
    source = write(tmp_path / "src", without=("Dockerfile",), **{"docker-compose.yaml": compose})
    (found,) = import_tasks(source, tmp_path / "dst")
    assert found.problem is None
    assert load_task(tmp_path / "dst/answer").image.docker_image == "org/img:1"


def test_a_task_without_compose_or_solution_is_imported_and_noted(tmp_path):
    source = write(tmp_path / "src", without=("docker-compose.yaml", "solution.sh"))
    (found,) = import_tasks(source, tmp_path / "dst")
    assert found.notes == ("it has no reference solution",)
    assert load_task(tmp_path / "dst/answer").solution is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"task.yaml": YAML.replace("pytest", "swebench")}, "task.yaml: parser_name: 'swebench' is not supported"),
        ({"task.yaml": YAML + "run_tests_in_same_shell: true\n"}, "task.yaml: run_tests_in_same_shell: the agent's"),
        ({"task.yaml": YAML.replace("easy", "heroic")}, "task.yaml: difficulty: expected 'easy', 'medium'"),
        ({"task.yaml": YAML.replace("instruction:", "words:")}, "task.yaml: instruction: missing"),
        ({"task.yaml": "a: [\n"}, "task.yaml:2:1: not YAML"),
        ({"task.yaml": "- 1\n"}, "task.yaml: expected a table of keys"),
        (
            {"docker-compose.yaml": COMPOSE + "  db:\n    image: postgres\n"},
            "docker-compose.yaml: services: client, db; tasks of several services are not supported yet",
        ),
        (
            {"docker-compose.yaml": COMPOSE.replace('[ "sh", "-c", "sleep infinity" ]', "nginx")},
            "services.client.command: 'nginx' is more than waiting",
        ),
        (
            {"docker-compose.yaml": COMPOSE.replace("LEVEL=3", "LEVEL=$${HOME}")},
            "services.client.environment.LEVEL: a literal '${' cannot be carried over",
        ),
        ({"tests/test.sh": "true\n"}, "tests/test.sh: the name is needed at /tests"),
    ],
)
def test_what_cannot_be_carried_over_names_the_file_and_the_key(tmp_path, changes, expected):
    assert expected in refusal(tmp_path, **changes)


@pytest.mark.parametrize("missing", ["run-tests.sh", "Dockerfile"])
def test_a_missing_file_is_named(tmp_path, missing):
    assert f"{missing}: missing" in refusal(tmp_path, without=(missing,))


def test_keystrokes_as_a_solution_are_refused(tmp_path):
    message = refusal(tmp_path, without=("solution.sh",), **{"solution.yaml": "- command: x\n"})
    assert "solution.yaml: keystrokes are not supported; write them as solution.sh" in message


def test_links_out_of_the_task_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("instruction: x\n")
    source = write(tmp_path / "src", without=("task.yaml",))
    (source / "task.yaml").symlink_to(tmp_path / "secret")
    (source / "link").symlink_to(tmp_path / "secret")
    (found,) = import_tasks(source, tmp_path / "dst")
    assert found.problem is not None
    assert "task.yaml: reached through a symbolic link" in found.problem
    (source / "task.yaml").unlink()
    (source / "task.yaml").write_text(YAML)
    import_tasks(source, tmp_path / "dst")
    assert (tmp_path / "dst/answer/environment/link").is_symlink()


def test_a_pipe_in_a_task_is_refused_instead_of_read(tmp_path):
    source = write(tmp_path / "src")
    os.mkfifo(source / "pipe")
    (found,) = import_tasks(source, tmp_path / "dst")
    assert found.problem is not None
    assert "pipe: neither a file" in found.problem


def test_nothing_that_is_there_is_replaced(tmp_path):
    directory = imported(tmp_path)
    (directory / "instruction.md").write_text("Mine.\n")
    (again,) = import_tasks(tmp_path / "src/answer", tmp_path / "dst")
    assert again.problem is not None
    assert "exists; remove it, or import into another directory" in again.problem
    assert (directory / "instruction.md").read_text() == "Mine.\n"


def test_of_a_directory_the_good_ones_are_imported_and_the_table_tells_of_the_others(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / "src", name)
    write(tmp_path / "src", "broken", **{"task.yaml": YAML.replace("pytest", "[odd]")})
    (tmp_path / "src" / "notes").mkdir()
    found = import_tasks(tmp_path / "src", tmp_path / "dst")
    assert [(it.name, it.problem is None) for it in found] == [("a", True), ("b", True), ("broken", False)]
    out = io.StringIO()
    assert not render(found, Console(file=out, width=160))
    assert "2 imported, 1 refused" in out.getvalue()
    assert "parser_name: expected a valid string" in " ".join(out.getvalue().split())
    assert json.loads(to_json(found))[0]["target"] == str(tmp_path / "dst/a")


def test_a_clean_import_is_fine(tmp_path):
    it = Imported(name="x", target="y")
    assert render([it], Console(file=io.StringIO()))


def test_a_directory_without_tasks_is_an_error(tmp_path):
    with pytest.raises(TaskError, match=r"no task\.yaml in it"):
        import_tasks(tmp_path, tmp_path / "dst")
    with pytest.raises(TaskError, match="no such directory"):
        import_tasks(tmp_path / "nowhere", tmp_path / "dst")
    write(tmp_path / "src")
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="name a directory"):
        import_tasks(tmp_path / "src", tmp_path / "file")


def test_the_command_exits_with_1_when_a_task_is_refused_and_writes_what_became_of_each(tmp_path):
    write(tmp_path / "src", "a")
    write(tmp_path / "src", "b", without=("run-tests.sh",))
    arguments = ["tasks", "import", str(tmp_path / "src"), str(tmp_path / "dst"), "--json", str(tmp_path / "o.json")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "1 imported, 1 refused" in result.output
    assert [it["problem"] is None for it in json.loads((tmp_path / "o.json").read_text())] == [True, False]
