from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from muster.errors import TaskError
from muster.tasks.compose import ComposeImage, read_compose


def read(root: Path, text: str, **variables: str) -> ComposeImage:
    path = root / "docker-compose.yaml"
    path.write_text(text)
    return read_compose(path, variables)


def service(root: Path, body: str, **variables: str) -> ComposeImage:
    return read(root, f"services:\n  main:\n    {body}\n", **variables)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("services: {client: {build: .}, db: {image: postgres}}", "services: client, db; tasks of several services"),
        ("services: {main: }\nvolumes: 5", "volumes: expected a table, found 5"),
        ("a: 2024-13-45", "not YAML: month must be in 1..12"),
        ("[" * 20000, "not YAML"),
        ("services: {}", "services: none found; tasks of several services"),
        ("a: [", ":1:"),
        ("- 1", "the file: expected a table"),
        ("services: {main: {build: .}}\nsecrets: {x: {file: ./x}}", "secrets: is not supported in a sandbox"),
        ("services: {main: {privileged: true}}", "services.main.privileged: is not supported in a sandbox; remove it"),
        ("services: {main: {network_mode: host}}", "services.main.network_mode: 'host' is not supported"),
        ("services: {main: {entrypoint: []}}", "services.main.entrypoint: taking away the image's own"),
        ("services: {main: {volumes: ['./data:/data:ro']}}", "services.main.volumes: './data' would mount files"),
        ("services: {main: {volumes: [{type: bind, source: /etc, target: /e}]}}", "'/etc' would mount files"),
        ("services: {main: {build: ..}}", "services.main.build.context: '..' leads out of"),
        ("services: {main: {build: {context: ., dockerfile: ../x}}}", "build.dockerfile: '../x' leads out of"),
        ('services: {main: {build: "a\\0b"}}', "services.main.build.context: 'a\\x00b' leads out of"),
        ("services: {main: {build: {ssh: [default]}}}", "services.main.build.ssh: is not supported"),
        ("services: {main: {environment: {A: [1]}}}", "services.main.environment.A: expected a text, found [1]"),
        ("services: {main: {environment: {A: '${SECRET}'}}}", "environment.A: ${SECRET} has no value; pass it"),
        ("services: {main: {command: 'a \"b'}}", "services.main.command: No closing quotation"),
        ("services: {main: {healthcheck: {test: [RUN, x]}}}", "healthcheck.test: expected a text, or a list"),
        ("services: {main: {healthcheck: {test: x, interval: soon}}}", "interval: expected a duration such as '10s'"),
        ("services: {main: {healthcheck: {test: x, retries: 0}}}", "retries: expected a whole number of 1 or more"),
    ],
)
def test_what_cannot_be_had_names_the_file_the_key_and_the_fix(tmp_path, text, expected):
    with pytest.raises(TaskError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/docker-compose.yaml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_environments_are_lists_or_tables_and_unset_names_are_left_out(tmp_path):
    assert service(tmp_path, "environment: {A: 1, B: true, C: , D: }", D="d").env == {"A": "1", "B": "true", "D": "d"}
    assert service(tmp_path, "environment: [A=1=2, C]").env == {"A": "1=2"}


def test_variables_have_defaults_and_a_doubled_dollar_is_one(tmp_path):
    env = service(tmp_path, "environment: ['A=${X:-x}', 'B=${Y-y}', 'C=$$HOME', 'D=$Z']", Z="z").env
    assert env == {"A": "x", "B": "y", "C": "$HOME", "D": "z"}


def test_a_health_check_may_be_switched_off(tmp_path):
    assert service(tmp_path, "healthcheck: {disable: true, test: x}").health is None
    assert service(tmp_path, "healthcheck: {test: [NONE]}").health is None


def test_what_runs_is_the_entrypoint_with_the_command(tmp_path):
    found = service(tmp_path, "entrypoint: /start -v\n    command: [serve]")
    assert (found.entrypoint, found.command, found.idle) == (("/start", "-v"), ("serve",), False)
    assert service(tmp_path, "entrypoint: [tail, -f, /dev/null]").idle


def test_shell_commands_of_a_health_check_stay_as_they_are(tmp_path):
    for test in ("'curl x || exit 1'", "[CMD-SHELL, 'curl x || exit 1']"):
        health = service(tmp_path, f"healthcheck: {{test: {test}}}").health
        assert health is not None
        assert health.command == "curl x || exit 1"


def test_the_image_that_a_harness_would_build_is_none_to_look_for(tmp_path):
    assert service(tmp_path, "image: ${MAIN_IMAGE_NAME}").docker_image is None
    assert service(tmp_path, "build: .\n    image: my-name").docker_image is None


def test_own_extensions_and_the_networks_of_one_service_are_dropped(tmp_path):
    found = read(tmp_path, "x-a: 1\nnetworks: {n: }\nservices: {main: {x-b: 1, networks: [n], ports: ['80']}}")
    assert found.service == "main"


texts = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.lists(st.text(max_size=4), max_size=2)
)
keys = st.sampled_from(["build", "image", "command", "environment", "user", "volumes", "healthcheck", "ports", "odd"])


@example(body={"build": {"\n": None}})
@given(body=st.dictionaries(keys, texts | st.dictionaries(st.text(max_size=4), texts, max_size=2), max_size=4))
def test_any_service_is_read_or_refused_with_one_line(tmp_path_factory, body):
    root = tmp_path_factory.mktemp("compose")
    try:
        read(root, yaml.safe_dump({"services": {"main": body}}))
    except TaskError as problem:
        assert "\n" not in str(problem)
