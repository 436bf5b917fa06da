"""The parts of the docker backend that need no daemon."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import clock
from muster.errors import ConfigError, SandboxError, SandboxStartError
from muster.sandbox.command import Answer
from muster.sandbox.docker import scripts
from muster.sandbox.docker.container import network
from muster.sandbox.docker.daemon import Daemon
from muster.sandbox.docker.ending import by_agent
from muster.sandbox.docker.image import snapshot_of
from muster.sandbox.docker.labels import Owner, is_dead
from muster.sandbox.docker.shell import Shell
from muster.sandbox.docker.stream import STDERR, STDOUT, Frames, Stream
from muster.sandbox.output import HeadTail
from muster.types import HealthCheck, ImageSpec, Limits


def frame(kind: int, data: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=30))), st.integers(1, 40))
def test_frames_give_each_stream_its_bytes_however_they_are_cut(parts: list[tuple[int, bytes]], cut: int) -> None:
    wire = b"".join(frame(kind, data) for kind, data in parts)
    frames = Frames()
    got = [part for start in range(0, len(wire), cut) for part in frames.feed(wire[start : start + cut])]
    for stream in (STDOUT, STDERR):
        assert b"".join(d for k, d in got if k == stream) == b"".join(d for k, d in parts if k == stream)


class Peer:
    """The daemon's end of a shell's stream."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(5)
        self.shell = Shell(Stream(ours.detach()))

    def token(self) -> bytes:
        return self._theirs.recv(65536).rpartition(b'\\0%s\\n" ')[2].split(b" ")[0]

    def say(self, kind: int, data: bytes) -> None:
        self._theirs.sendall(frame(kind, data))

    def close(self) -> None:
        self._theirs.close()


async def soon(future: asyncio.Future[Answer | None]) -> Answer | None:
    async with clock.timeout(5):
        return await asyncio.shield(future)


def test_an_answer_is_whole_when_both_streams_have_ended() -> None:
    async def main() -> None:
        peer, sink = Peer(), HeadTail(100)
        answer = peer.shell.run("command", sink)
        token = peer.token()
        peer.say(STDERR, b"\0begin 12.34 56\n")
        peer.say(STDERR, b"payload\0" + token + b" 3\n")
        await clock.sleep(0.02)
        assert not answer.done()
        assert peer.shell.begun == scripts.Moment(ticks=1234, last_pid=56)
        wire = b"out\0put\0" + token + b"\nlate"
        for cut in range(0, len(wire), 5):
            peer.say(STDOUT, wire[cut : cut + 5])
        assert await soon(answer) == Answer(exit_code=3, payload=b"payload")
        assert sink.text() == "out\0put"
        later = HeadTail(100)
        answer = peer.shell.run("next", later)
        peer.close()
        assert await soon(answer) is None
        assert later.text() == "late", "what a background process wrote meanwhile"

    clock.run(main())


@pytest.mark.parametrize(
    ("code", "oom", "before", "agent"),
    [(137, False, 0, False), (137, True, 0, True), (137, True, 1, False), (3, False, 0, True), (0, False, 0, True)],
)
def test_only_evidence_blames_the_agent_for_the_end_of_a_container(
    code: int, oom: bool, before: int, agent: bool
) -> None:
    assert by_agent({"ExitCode": code, "OOMKilled": oom}, oom_kills_before=before) is agent


def test_a_controller_is_dead_only_when_it_ran_here_and_does_no_more() -> None:
    process = subprocess.Popen(["/bin/sleep", "100"])
    mine = Owner.here("run").controller
    boot, namespace, _, _ = mine.split("/")
    start = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()[19]
    theirs = f"{boot}/{namespace}/{process.pid}/{start}"
    assert not is_dead(mine)
    assert not is_dead(theirs)
    process.kill()
    process.wait()
    assert is_dead(theirs)
    assert not is_dead(theirs.replace(boot, "another-boot")), "another machine's, or before a restart: not ours to say"
    assert not is_dead("")


def test_a_snapshot_has_the_images_settings_below_those_of_the_task() -> None:
    config = {
        "Env": ["A=1", "B=two=2"],
        "WorkingDir": "/srv",
        "User": "www-data",
        "Entrypoint": ["/serve"],
        "Cmd": ["--fast"],
        "Healthcheck": {"Test": ["CMD", "curl", "a b"], "Interval": 2_000_000_000, "Retries": 7},
    }
    snapshot = snapshot_of({"Id": "sha256:1", "Config": config}, ImageSpec(env={"A": "9"}, workdir="/app"))
    assert (snapshot.workdir, snapshot.user, dict(snapshot.env)) == ("/app", "www-data", {"A": "9", "B": "two=2"})
    assert snapshot.service is not None
    assert snapshot.service.command == ("/serve", "--fast")
    assert snapshot.service.check == HealthCheck(command="curl 'a b'", interval_s=2.0, retries=7)
    assert snapshot_of({"Id": "sha256:1", "Config": {"Cmd": ["bash"]}}, ImageSpec()).service is None


def test_a_container_has_no_network_or_all_of_it() -> None:
    assert network(Limits()) == "none"
    assert network(Limits(egress=("*",))) == "bridge"
    with pytest.raises(SandboxStartError, match=r"cannot allow example\.org alone"):
        network(Limits(egress=("example.org",)))


def test_a_docker_host_that_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.docker_host: 'ssh://there'"):
        Daemon("ssh://there")


def test_a_daemon_that_hangs_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        daemon = Daemon(f"unix://{tmp_path}/s")

        async def main() -> None:
            started = clock.now()
            with pytest.raises(SandboxError, match=r"version: no answer in 0\.2 s"):
                await daemon.call("version", lambda api: api.version(), timeout_s=0.2)
            assert clock.now() - started < 5
            connection, _ = silent.accept()
            connection.close()  # the thread that was left behind ends with it
            while any(t.name == "docker version" for t in threading.enumerate()):
                await clock.sleep(0.01)

        clock.run(main())


def test_no_daemon_is_an_error_of_the_boundary(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(SandboxError, match="version"):
            await Daemon(f"unix://{tmp_path}/none").call("version", lambda api: api.version())

    clock.run(main())
