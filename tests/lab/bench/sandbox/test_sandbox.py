"""The sandbox benchmark: its arithmetic, its daemons, and a search for leaks that finds some when there are some."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import docker
import pytest
from typer.main import get_command

import daemons as test_daemons
from muster import clock
from muster.app.cli import app
from muster.errors import ConfigError
from muster.lab.bench.sandbox import daemons, leaks
from muster.lab.bench.sandbox.sandbox import rows, run_sandbox_bench, speed_targets
from muster.lab.bench.sandbox.sides import BUILTIN, EXTERNAL, FORK, OPERATIONS, PlainSide
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import ImageSpec, Limits


def seconds(**sides: float) -> dict[str, dict[str, list[float]]]:
    """Every operation of a side takes as long as said."""
    return {name.replace("_", " "): {operation: [taken] for operation in OPERATIONS} for name, taken in sides.items()}


def test_a_ratio_is_over_namespace_and_a_target_over_plain_docker() -> None:
    measured = seconds(namespace=0.01, docker_plain=0.2)
    measured["docker plain"][EXTERNAL] = [0.1]
    assert {(r["side"], r["operation"]): r["ratio"] for r in rows(measured)}["docker plain", FORK] == pytest.approx(20)
    verdicts = {t.name: t.met for t in speed_targets(measured)}
    assert verdicts == {
        "fork_p50_ms": True,
        "fork_vs_docker_run": True,
        "exec_builtin_vs_docker_exec": True,
        "exec_external_vs_docker_exec": False,
    }


def test_a_side_that_was_not_measured_has_no_target() -> None:
    assert [t.name for t in speed_targets(seconds(namespace=0.5))] == ["fork_p50_ms"]
    assert speed_targets(seconds(docker_plain=0.1)) == []
    assert all(math.isnan(float(row["ratio"])) for row in rows(seconds(docker_plain=0.1)))


def test_an_unknown_side_is_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match="--backend kvm: the sides are namespace, docker, podman"):
        run_sandbox_bench(repeats=1, forks=0, backends=["kvm"], say=print)


@pytest.mark.sandbox
def test_traces_of_a_live_sandbox_are_found_and_after_closing_there_are_none(tmp_path: Path) -> None:
    async def main() -> None:
        traces = leaks.Traces(state_dir=tmp_path, mark="muster-test-mark")
        backend = NamespaceBackend(SandboxConfig(state_dir=tmp_path), run="leaktest")
        traces.runs = {p.name for p in (tmp_path / "runs").iterdir() if p.is_dir()}
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="x")
        said = await sandbox.run(f"(exec -a {traces.mark} sleep 1000) & readlink /proc/self/ns/net", timeout_s=5)
        traces.namespaces.add(said.output.strip())
        found = traces.leftovers()
        assert min(found.processes, found.cgroups, found.network_namespaces, found.bytes) > 0
        await backend.close()
        assert (await traces.settled()).total == 0

    clock.run(main())


@pytest.mark.sandbox
def test_forks_and_a_killed_controller_leave_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        assert (await leaks.forks(tmp_path / "closed", 12)).total == 0
        assert (await leaks.killed(tmp_path / "killed", 12)).total == 0

    clock.run(main())


@pytest.mark.sandbox
@pytest.mark.parametrize("kind", list(daemons.KINDS))
def test_the_plain_way_measures_every_operation(kind: str) -> None:
    async def main() -> None:
        side = PlainSide(test_daemons.host(kind), test_daemons.BASE, memory_bytes=64 * 1024 * 1024, pids=64)
        taken = await side.once()
        await side.close()
        assert {operation for operation, _ in taken} == set(OPERATIONS)
        assert sum(operation == BUILTIN for operation, _ in taken) > 1
        assert all(lap > 0 for _, lap in taken)

    clock.run(main())


@pytest.mark.sandbox
@pytest.mark.parametrize("kind", list(daemons.KINDS))
def test_a_private_daemon_is_gone_with_all_it_ran(kind: str) -> None:
    test_daemons.host(kind)  # or skip
    with daemons.KINDS[kind]() as host:
        daemons.import_base(host)
        with contextlib.closing(docker.APIClient(host, "auto")) as api:
            settings = api.create_host_config(network_mode="none")
            made = api.create_container(daemons.BASE, ["sleep", "infinity"], host_config=settings)
            api.start(made["Id"])
            pid = api.inspect_container(made["Id"])["State"]["Pid"]
        place = Path(host.removeprefix("unix://")).parent
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not place.exists()
    assert str(place) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{place.name}"))


def test_a_daemon_whose_program_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(daemons.Unavailable, match=r"not installed: dockerd|needs root"), daemons.dockerd():
        pass


def test_the_options_of_the_command_are_frozen() -> None:
    bench = get_command(app).commands["bench"]  # type: ignore[attr-defined]
    flags = {o for p in bench.commands["sandbox"].params for o in p.opts if o.startswith("--")}
    assert flags == {"--repeats", "--forks", "--backend", "--docker-host", "--json", "--check"}
