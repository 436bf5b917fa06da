from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from muster import extras
from muster.app.cli import app, main

COMMANDS = {"train", "eval", "report", "doctor", "tasks", "bench", "audit", "replay", "engine", "sim", "plan"}
FLAGS = {
    "train": {"--config", "--output", "--set", "--resume", "--dry-run", "--plain"},
    "eval": {"--config", "--set", "--run", "--output"},
    "report": {"--html", "--figures", "--json", "--accounting"},
    "replay": {"--run", "--json"},
    "doctor": set(),
    "plan": {"--workload", "--engine", "--what", "--set", "--against", "--seeds", "--jobs", "--json", "--check"},
    "sim": {"--seeds", "--first", "--jobs", "--faults", "--break", "--json", "--check"},
    "audit": {"--only", "--exploit", "--repeats", "--json", "--config", "--set"},
}
BENCHES = {
    "control": {"--live", "--seed", "--json", "--check"},
    "lag": {"--seed", "--json", "--check"},
    "publish": {"--model", "--engine", "--python", "--arm", "--repeats", "--json", "--check"},
    "routing": {"--repetitions", "--jobs", "--real", "--engine", "--python", "--model", "--json", "--check"},
    "selection": {"--repetitions", "--seed", "--json", "--check"},
    "ttb": {"--virtual", "--real", "--grid", "--repetitions", "--declaration", "--plot", "--json", "--check"},
}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the real entry point."""
    monkeypatch.setattr(sys, "argv", ["muster", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_commands_and_their_flags_are_frozen() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) == COMMANDS
    for name, flags in FLAGS.items():
        found = {o for p in commands[name].params for o in p.opts if o.startswith("--")}
        assert found == flags, "one --set, no flag per knob"


@pytest.mark.parametrize("name", sorted(BENCHES))
def test_the_flags_of_a_benchmark_are_frozen_and_its_help_has_an_example(name: str) -> None:
    command = get_command(app).commands["bench"].commands[name]  # type: ignore[attr-defined]
    assert {o for p in command.params for o in p.opts if o.startswith("--")} == BENCHES[name]
    assert "Example" in CliRunner().invoke(app, ["bench", name, "--help"]).output


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def test_a_dry_run_prints_the_resolved_configuration_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "--dry-run", "--set", "schedule.max_lag=2"])
    assert "max_lag = 2" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set", "schedule.max_lagg=1"], "did you mean 'schedule.max_lag'"),
        (["train", "--config", "none.toml"], "none.toml: no such file"),
        (["train", "--resume", "nothing"], "no run to resume"),
        (["train", "--set", "model=/no/such/model"], "no such folder or file"),
        (["train", "--set", "tasks.train=nothing"], "nothing: no such directory"),
        (["report", "nothing"], "no journal there"),
        (["replay", "g000000.0"], "no run below runs/"),
        (["replay", "g000000.0", "--run", "nothing"], "no journal there"),
        (["train", "--resume", "x", "--set", "a=1"], "leave the other options out"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("muster: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written for a mistake"


def test_a_broken_task_is_named_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "suite" / "broken"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Do it.")
    (task / "tests" / "test.sh").write_text("true")
    (task / "task.toml").write_text('version = "1.0"\n[environment]\nmemory_mb = "lots"\n')
    assert run(monkeypatch, "train", "--set", f"tasks.train={tmp_path / 'suite'}") == 2
    assert "broken/task.toml: environment.memory_mb" in capsys.readouterr().err


def test_suites_are_generated_by_name_and_difficulty(tmp_path: Path) -> None:
    group = get_command(app).commands["tasks"]  # type: ignore[attr-defined]
    flags = {o for p in group.commands["generate"].params for o in p.opts if o.startswith("--")}
    assert flags == {"--suite", "--seed", "--per-family", "--difficulty", "--heldout", "--family"}
    words = ["--suite", "terminal", "--difficulty", "1", "--family", "crontab", "--per-family", "2"]
    result = CliRunner().invoke(app, ["tasks", "generate", str(tmp_path / "suite"), *words])
    assert result.output.startswith("2 tasks in ")
    assert sorted(p.name for p in (tmp_path / "suite").iterdir()) == [f"crontab-train-d1-000{i}" for i in range(2)]


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"muster {importlib.metadata.version('muster-rl')}\n")


def test_a_module_that_an_extra_brings_is_named_with_it() -> None:
    assert extras.remedy(ModuleNotFoundError(name="torch")) == "torch is missing: pip install 'muster-rl[train]'"
    assert extras.remedy(ModuleNotFoundError(name="docker.errors")) == (
        "docker is missing: pip install 'muster-rl[docker]'"
    )
    assert extras.remedy(ModuleNotFoundError(name="my_own_module")) is None


def test_importing_the_package_loads_no_torch() -> None:
    script = "import sys, muster, muster.app.cli; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
