from pathlib import Path

import pytest

from muster.errors import TaskError
from muster.tasks.harbor import load_task
from muster.types import HealthCheck, ImageSpec
from tasks.task_directory import write_task


def image(root: Path, toml: str = "", compose: str | None = None, dockerfile: bool = True) -> ImageSpec:
    files = {} if compose is None else {"environment/docker-compose.yaml": compose}
    directory = write_task(root, toml=toml, **files)
    if not dockerfile:
        (directory / "environment" / "Dockerfile").unlink()
    return load_task(directory).image


SERVICE = """
services:
  main:
    build: {context: "${CONTEXT_DIR}", args: {LEVEL: 2}, target: final}
    environment: ["A=compose", "B=two", "TEST_DIR=${TEST_DIR}"]
    working_dir: /srv
    user: 1000
    command: ["serve", "--port", "80"]
    healthcheck: {test: ["CMD", "curl", "-f", "localhost"], interval: 1m30s, timeout: 500ms, retries: 4}
    ports: ["8080:80"]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:/logs/verifier", "data:/data"]
volumes: {data: }
"""


def test_a_ready_made_image_stands_in_where_there_is_no_dockerfile(tmp_path):
    toml = '[environment]\ndocker_image = "org/img:1"\n'
    with_dockerfile = image(tmp_path, toml)
    assert with_dockerfile.dockerfile is not None
    assert with_dockerfile.docker_image is None
    without = image(tmp_path, toml, dockerfile=False)
    assert (without.dockerfile, without.docker_image) == (None, "org/img:1")


def test_a_health_check_is_read_with_its_times(tmp_path):
    toml = '[environment.healthcheck]\ncommand = "curl -f localhost"\ninterval_sec = 1\nstart_interval_sec = 1\n'
    assert image(tmp_path, toml).health == HealthCheck(
        command="curl -f localhost", interval_s=1.0, timeout_s=30.0, start_period_s=0.0, retries=3
    )


def test_a_compose_file_of_one_service_becomes_the_image(tmp_path):
    found = image(tmp_path, compose=SERVICE)
    context = tmp_path / "one" / "environment"
    assert (found.context, found.dockerfile, found.target) == (context, context / "Dockerfile", "final")
    assert found.build_args == {"LEVEL": "2"}
    assert found.env == {"A": "compose", "B": "two", "TEST_DIR": "/tests"}
    assert (found.workdir, found.user, found.command) == ("/srv", "1000", ("serve", "--port", "80"))
    assert found.health == HealthCheck(command="curl -f localhost", interval_s=90.0, timeout_s=0.5, retries=4)


def test_the_keys_of_the_task_win_over_those_of_the_compose_file(tmp_path):
    toml = (
        '[agent]\nuser = "node"\n[environment]\nworkdir = "/app"\nenv = { A = "task" }\n'
        '[environment.healthcheck]\ncommand = "true"\n'
    )
    found = image(tmp_path, toml, SERVICE)
    assert (found.env["A"], found.env["B"]) == ("task", "two")
    assert (found.workdir, found.user) == ("/app", "node")
    assert found.health is not None
    assert found.health.command == "true"


@pytest.mark.parametrize(
    "command",
    ["sleep infinity", "tail -f /dev/null", '["sh", "-c", "sleep infinity"]', "bash -c 'exec sleep 3600'", "/bin/bash"],
)
def test_a_command_that_only_waits_needs_no_health_check(tmp_path, command):
    image(tmp_path, compose=f"services:\n  main:\n    build: .\n    command: {command}\n")


def test_a_command_that_serves_needs_one(tmp_path):
    with pytest.raises(TaskError, match=r"environment.healthcheck: missing: service 'main' runs 'nginx -g x'"):
        image(tmp_path, compose="services:\n  main:\n    command: nginx -g x\n")


def test_a_compose_file_may_name_a_ready_made_image(tmp_path):
    compose = "services:\n  main:\n    image: org/img:2\n"
    assert image(tmp_path, compose=compose, dockerfile=False).docker_image == "org/img:2"


def test_neither_a_dockerfile_nor_an_image_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(TaskError, match=r"environment/Dockerfile: missing"):
        image(tmp_path, dockerfile=False)


def test_a_compose_file_is_not_read_through_a_link(tmp_path):
    directory = write_task(tmp_path)
    (tmp_path / "secret").write_text("services: {}")
    (directory / "environment" / "docker-compose.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskError, match=r"docker-compose.yaml: reached through a symbolic link"):
        load_task(directory)
