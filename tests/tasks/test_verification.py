from pathlib import Path

import pytest

from muster.errors import TaskError
from muster.tasks.harbor import load_task
from muster.types import Collect, Limits, VerifierSpec
from tasks.task_directory import write_task

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def verifier(root: Path, toml: str, **files: str) -> VerifierSpec:
    return load_task(write_task(root, toml=toml, **files)).verifier


def test_a_shared_verifier_sees_everything_and_has_no_image(tmp_path):
    spec = verifier(tmp_path, 'artifacts = ["relative", { source = "/a", exclude = ["x"], service = "db" }]\n')
    assert (spec.image, spec.artifacts, spec.shared_tests, spec.tests_in_image) == (None, (), None, False)


def test_a_separate_verifier_without_an_image_of_its_own_gets_a_fresh_copy_of_the_environment(tmp_path):
    toml = f'artifacts = ["/app/out/", {{ source = "/srv/x" }}]\n{SEPARATE}[environment]\nenv = {{ A = "1" }}\n'
    spec = verifier(tmp_path, toml)
    assert spec.image is not None
    assert spec.image.dockerfile == tmp_path / "one" / "environment" / "Dockerfile"
    assert spec.image.env == {"A": "1"}
    assert spec.artifacts == ("/logs/artifacts", "/app/out", "/srv/x")
    assert (spec.limits, spec.tests_in_image) == (None, False)


def test_a_dockerfile_beside_the_tests_builds_an_image_that_brings_them(tmp_path):
    directory = write_task(tmp_path, toml=SEPARATE, **{"tests/Dockerfile": "FROM x\nCOPY . /tests/\n"})
    (directory / "tests" / "test.sh").unlink()
    spec = load_task(directory).verifier
    assert spec.image is not None
    assert (spec.image.dockerfile, spec.image.context) == (directory / "tests" / "Dockerfile", directory / "tests")
    assert spec.tests_in_image


def test_an_environment_table_of_the_verifier_implies_a_separate_one(tmp_path):
    toml = (
        '[environment]\nnetwork_mode = "public"\nmemory_mb = 64\n'
        '[verifier.environment]\ndocker_image = "org/judge:1"\nmemory_mb = 128\nenv = { J = "1" }\n'
    )
    spec = verifier(tmp_path, toml)
    assert spec.image is not None
    assert (spec.image.docker_image, spec.image.dockerfile, spec.image.env) == ("org/judge:1", None, {"J": "1"})
    assert spec.limits == Limits(memory_bytes=128 * 2**20)
    assert spec.egress == (), "its own environment asks for no network"
    assert spec.tests_in_image


def test_commands_to_collect_state_are_kept_in_order(tmp_path):
    toml = (
        f'{SEPARATE}[[verifier.collect]]\ncommand = "dump > /app/db.sql"\ntimeout_sec = 5\nuser = "app"\n'
        '[[verifier.collect]]\ncommand = "true"\n'
    )
    assert verifier(tmp_path, toml).collect == (
        Collect(command="dump > /app/db.sql", timeout_s=5.0, user="app"),
        Collect(command="true"),
    )


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n',
            "verifier.environment_mode: 'shared' contradicts [verifier.environment]; keep one",
        ),
        ('[verifier]\nenvironment_mode = "own"\n', "verifier.environment_mode: expected 'shared' or 'separate'"),
        ("[[verifier.collect]]\ncommand = 'x'\n", "verifier.collect: is for environment_mode = 'separate'"),
        (f'artifacts = ["out"]\n{SEPARATE}', "artifacts.0.source: expected an absolute path without '..', found 'out'"),
        (f'artifacts = ["/a/../b"]\n{SEPARATE}', "artifacts.0.source: expected an absolute path without '..'"),
        (f'artifacts = [{{ source = "/a", service = "db" }}]\n{SEPARATE}', "artifacts.0.service: services beside"),
        (f'artifacts = [{{ source = "/a", exclude = ["*.o"] }}]\n{SEPARATE}', "artifacts.0.exclude: leaving out"),
        ("artifacts = [1]\n", "artifacts.0: expected a valid dictionary"),
    ],
)
def test_what_a_separate_verifier_cannot_have_is_named(tmp_path, toml, expected):
    with pytest.raises(TaskError) as caught:
        verifier(tmp_path, toml)
    assert expected in str(caught.value)


def test_a_separate_verifier_whose_image_lacks_the_tests_needs_the_script(tmp_path):
    directory = write_task(tmp_path, toml=SEPARATE)
    (directory / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"tests/test\.sh: missing"):
        load_task(directory)
