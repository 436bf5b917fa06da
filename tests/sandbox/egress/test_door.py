"""The proxy: a door on loopback with a world of our own behind it, and a sandbox with a real one."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from muster import clock
from muster.errors import SandboxStartError, TaskError
from muster.sandbox.egress import proxy, rules
from muster.sandbox.egress.door import ENV, Egress
from muster.sandbox.egress.door import Door as Open
from muster.sandbox.egress.proxy import SandboxProxy, Stream
from muster.sandbox.egress.report import HOSTS_KEPT, OTHERS, EgressReport, EgressTally
from muster.sandbox.egress.rules import Address
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

PUBLIC = ipaddress.ip_address("93.184.216.34")
WORLD: dict[str, list[Address]] = {
    "good.org": [PUBLIC],
    "rebinding.org": [ipaddress.ip_address("127.0.0.1")],
    "mixed.org": [ipaddress.ip_address("10.0.0.1"), PUBLIC],
    "down.org": [ipaddress.ip_address("93.184.216.35")],
}
Body = Callable[["Town"], Awaitable[None]]


class Town:
    """A door, and a server at `PUBLIC` that answers each connection by `serve`."""

    def __init__(self) -> None:
        self.resolved: list[str] = []
        self.connected: list[tuple[Address, int]] = []
        self.heard = b""
        self.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
        self.port = 0
        self.server_port = 0

    async def resolve(self, host: str, port: int) -> list[Address]:
        self.resolved.append(host)
        if host not in WORLD:
            raise OSError(-2, "Name or service not known")
        return WORLD[host]

    async def connect(self, address: Address, port: int) -> Stream:
        self.connected.append((address, port))
        if address != PUBLIC:
            raise ConnectionRefusedError(111, "Connection refused")
        return await asyncio.open_connection("127.0.0.1", self.server_port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard = await reader.readuntil(b"\r\n\r\n")
        if self.heard.startswith(b"POST"):
            self.heard += await reader.readexactly(5)
        writer.write(self.reply)
        await writer.drain()
        writer.close()

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


def in_town(hosts: list[str], body: Body) -> EgressReport:
    async def main() -> EgressReport:
        town = Town()
        server = await asyncio.start_server(town.serve, "127.0.0.1", 0)
        town.server_port = server.sockets[0].getsockname()[1]
        listener = socket.create_server(("127.0.0.1", 0))
        town.port = listener.getsockname()[1]
        door = SandboxProxy(listener, rules.parse(hosts), resolve=town.resolve, connect=town.connect)
        await door.start()
        try:
            async with clock.timeout(10):
                await body(town)
        finally:
            report = await door.close()
            server.close()
            await server.wait_closed()
        return report

    return clock.run(main())


def get(host: str) -> bytes:
    return f"GET http://{host}/path HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_a_request_to_a_listed_host_is_answered_by_it_and_counted() -> None:
    async def body(town: Town) -> None:
        assert await town.ask(get("good.org")) == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        assert town.heard == b"GET /path HTTP/1.1\r\nHost: good.org\r\nConnection: close\r\n\r\n"
        assert town.connected == [(PUBLIC, 80)]

    report = in_town(["good.org"], body)
    assert (report.requests, report.sent_bytes, report.received_bytes) == (1, 0, 2)
    assert report.refused == {}


def test_a_tunnel_carries_bytes_both_ways() -> None:
    async def body(town: Town) -> None:
        town.reply = b"\x00\xffanswer"
        answer = await town.ask(b"CONNECT good.org:443 HTTP/1.1\r\n\r\n\x16hello\r\n\r\n")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n\x00\xffanswer"
        assert town.heard == b"\x16hello\r\n\r\n"
        assert town.connected == [(PUBLIC, 443)]

    report = in_town(["good.org"], body)
    assert (report.sent_bytes, report.received_bytes) == (10, 8)


def test_a_body_is_sent_on_and_no_second_request_after_it() -> None:
    async def body(town: Town) -> None:
        request = b"POST http://good.org/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
        await town.ask(request + get("rebinding.org"))
        assert town.heard.endswith(b"\r\n\r\nhello")
        assert town.resolved == ["good.org"]

    assert in_town(["good.org"], body).sent_bytes == 5


def test_an_unlisted_host_is_refused_in_one_sentence_and_not_even_resolved() -> None:
    async def body(town: Town) -> None:
        answer = await town.ask(b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 evil.org is not on the list of hosts that this sandbox may reach\r\n")
        assert town.resolved == []
        await town.ask(get("evil.org"))
        await town.ask(get("evil.org"))

    assert in_town(["good.org"], body).refused == {"evil.org:443": 1, "evil.org:80": 2}


def test_a_listed_name_that_leads_to_this_machine_is_refused() -> None:
    async def body(town: Town) -> None:
        answer = await town.ask(get("rebinding.org"))
        assert answer.startswith(b"HTTP/1.1 403 rebinding.org leads to 127.0.0.1, which no sandbox may reach")
        assert town.connected == []

    assert in_town(["rebinding.org"], body).refused == {"rebinding.org:80": 1}


def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_connected_to() -> None:
    async def body(town: Town) -> None:
        assert (await town.ask(get("mixed.org"))).endswith(b"hi")
        assert (town.resolved, town.connected) == (["mixed.org"], [(PUBLIC, 80)])

    in_town(["mixed.org"], body)


def test_what_the_world_does_not_answer_is_a_bad_gateway_and_no_refusal() -> None:
    async def body(town: Town) -> None:
        assert (await town.ask(get("down.org"))).startswith(
            b"HTTP/1.1 502 cannot reach down.org:80: Connection refused"
        )
        assert (await town.ask(get("gone.org"))).startswith(b"HTTP/1.1 502 cannot reach gone.org:80: Name or service")

    report = in_town(["*"], body)
    assert report.failed == {"down.org:80": 1, "gone.org:80": 1}
    assert report.refused == {}


def test_nonsense_is_a_bad_request_and_the_door_stays_open() -> None:
    async def body(town: Town) -> None:
        assert (await town.ask(b"\x00\x01\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await town.ask(b"GET http://" + b"a" * 70_000)).startswith(b"HTTP/1.1 431 ")
        assert (await town.ask(get("good.org"))).endswith(b"hi")

    in_town(["good.org"], body)


def test_a_server_that_speaks_no_http_is_a_bad_gateway() -> None:
    async def body(town: Town) -> None:
        town.reply = b"SSH-2.0-OpenSSH\r\n\r\n"
        assert (await town.ask(get("good.org"))).startswith(b"HTTP/1.1 502 the server's answer is no HTTP/1")

    in_town(["good.org"], body)


def test_closing_a_door_cuts_its_connections() -> None:
    async def main() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        town = Town()
        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        town.server_port = server.sockets[0].getsockname()[1]
        listener = socket.create_server(("127.0.0.1", 0))
        door = SandboxProxy(listener, rules.parse(["*"]), resolve=town.resolve, connect=town.connect)
        port = listener.getsockname()[1]
        await door.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT good.org:443 HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await door.close()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        server.close()

    clock.run(main())


def test_loopback_is_recognised_as_this_machine() -> None:
    loopback = ipaddress.ip_address("127.0.0.1")
    assert proxy.own([loopback, PUBLIC]) == {loopback}


def test_a_flood_of_invented_hosts_takes_no_more_room_than_a_few() -> None:
    tally = EgressTally()
    for number in range(HOSTS_KEPT + 10):
        tally.refuse(f"{number}.org:80")
    tally.refuse("0.org:80")
    report = tally.report()
    assert len(report.refused) == HOSTS_KEPT + 1
    assert (report.refused["0.org:80"], report.refused[OTHERS]) == (2, 10)


def test_reports_of_one_sandbox_add_up() -> None:
    first = EgressReport(requests=1, sent_bytes=2, refused={"a:80": 1})
    second = EgressReport(requests=2, refused={"a:80": 1, "b:80": 1}, proxy_lost=True)
    total = first + second
    assert (total.requests, total.sent_bytes, total.refused, total.proxy_lost) == (3, 2, {"a:80": 2, "b:80": 1}, True)


# --- the process, and a sandbox ------------------------------------------------------------------------------

ASK = """python3 -c '
import os, sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.reason)
except OSError as error:
    print(error)
' """


@pytest.mark.sandbox
def test_a_sandbox_reaches_what_its_task_lists_and_nothing_else(on_backend: OnBackend) -> None:
    """127.0.0.1 stands for the world here: the operator opens it, and the task lists its port."""

    async def body(backend: NamespaceBackend) -> None:
        server = await asyncio.start_server(Town().serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        image = await backend.prepare(ImageSpec())
        sandbox = await backend.fork(image, limits=Limits(egress=(f"127.0.0.1:{port}",)), label="door")
        ask = f"no_proxy= {ASK}"
        assert (await sandbox.run(f"{ask} http://127.0.0.1:{port}/", 10)).output == "hi\n"
        assert (await sandbox.run(f"{ask} http://127.0.0.1:1/", 10)).output.startswith("403 port 1 of 127.0.0.1")
        assert (await sandbox.run(f"{ask} http://x.org/", 10)).output.startswith("403 x.org is not on the list")
        direct = await sandbox.run(f"http_proxy= {ASK} http://127.0.0.1:{port}/", 10)
        assert "refused" in direct.output  # the host's loopback is not the sandbox's
        await sandbox.close()
        assert sandbox.egress.refused == {"127.0.0.1:1": 1, "x.org:80": 1}
        assert sandbox.egress.received_bytes == 2
        server.close()

    on_backend(body, egress_networks=("127.0.0.1",))


@pytest.mark.sandbox
def test_a_door_survives_the_end_of_the_sandboxes_processes(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        sandbox = await backend.fork(image, limits=Limits(egress=("x.org",)), label="door")
        assert "403" in (await sandbox.run(f"{ASK} http://y.org/", 10)).output
        await sandbox.snapshot()
        assert "403" in (await sandbox.run(f"{ASK} http://z.org/", 10)).output
        await sandbox.close()
        assert sandbox.egress.refused == {"y.org:80": 1, "z.org:80": 1}

    on_backend(body)


@pytest.mark.sandbox
def test_without_a_list_or_where_the_operator_forbids_it_there_is_no_door(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        for hosts in ((), ("x.org",)):
            sandbox = await backend.fork(image, limits=Limits(egress=hosts), label="closed")
            assert (await sandbox.run("echo ${http_proxy-none}", 5)).output == "none\n"
            assert (await sandbox.run("exec 7<>/dev/tcp/127.0.0.1/3128", 5)).exit_code == 1

    on_backend(body, egress="none")


@pytest.mark.sandbox
def test_a_malformed_list_is_the_tasks_error(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        with pytest.raises(TaskError, match=r"http://x\.org"):
            await backend.fork(image, limits=Limits(egress=("http://x.org",)), label="bad")
        assert backend.live == 0

    on_backend(body)


@pytest.mark.sandbox
def test_a_proxy_that_dies_is_reported_and_the_next_sandbox_gets_another(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        first = await backend.fork(image, limits=Limits(egress=("x.org",)), label="first")
        os.kill(children_named("egress.process")[0], signal.SIGKILL)
        second = await backend.fork(image, limits=Limits(egress=("x.org",)), label="second")
        assert "403" in (await second.run(f"{ASK} http://y.org/", 10)).output
        await first.close()
        assert first.egress.proxy_lost
        await second.close()
        assert not second.egress.proxy_lost

    on_backend(body)
    assert children_named("egress.process") == []


@pytest.mark.sandbox
def test_more_questions_than_a_socket_holds_are_all_answered(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="one")
        life = sandbox._life  # pyright: ignore
        assert life is not None
        egress = Egress()
        asked = [egress.open(life.supervisor.init_pid, ("x.org",)) for _ in range(300)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        doors = [answer for answer in answers if isinstance(answer, Open)]
        assert len(doors) == 1  # it has one port 3128
        assert all("in use" in str(answer) for answer in answers if answer not in doors)
        assert not (await doors[0].close()).proxy_lost
        await egress.close()

    on_backend(body)


def test_a_process_that_is_gone_cannot_have_a_door() -> None:
    async def main() -> None:
        egress = Egress()
        gone = await asyncio.create_subprocess_exec("/bin/true")
        await gone.wait()
        with pytest.raises(SandboxStartError, match="egress proxy"):
            await egress.open(gone.pid, ("x.org",))
        await egress.close()

    clock.run(main())


def test_programs_of_every_habit_find_the_proxy_in_the_environment() -> None:
    assert {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"} == set(ENV)


def children_named(name: str) -> list[int]:
    """Our own children whose command line holds `name`."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
