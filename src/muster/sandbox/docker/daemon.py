"""Calls to a Docker or Podman daemon, each in a thread of its own with a deadline from outside.

    call ─► thread ─► SDK ─► its answer │ it refused ─► SandboxError │ no such object ─► Missing
                                        │ silence ─► SandboxError; the thread is left behind and ends with the socket

Law: this file alone catches what the SDK raises. A call that hangs costs its caller the deadline and nothing else:
whatever the daemon makes of it later carries our labels, and is removed by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import docker
import docker.constants
import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env

from muster import clock
from muster.errors import ConfigError, SandboxError
from muster.sandbox.docker.stream import Stream

CALL_TIMEOUT_S = 60.0
_POOL = 64  # connections kept; more are opened and closed when needed

# other errors of `function` are its caller's: that no such file is there, say
_FAILURES = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)

T = TypeVar("T")
Client = Any
"""The SDK's `APIClient`, whose methods carry no types."""


class Missing(SandboxError):
    """The daemon knows no such container, image, volume or path."""


class Daemon:
    """One daemon. Nothing is sent before the first call.

    Example: `version = await Daemon("unix:///run/docker.sock").call("version", lambda api: api.version())`
    """

    def __init__(self, host: str | None) -> None:
        """`host`: unix://… or tcp://…; None: DOCKER_HOST, or Docker's own socket. Raises `ConfigError`."""
        self.host = host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if not self.host.startswith(("unix://", "tcp://")) or "tls" in kwargs_from_env():
            raise ConfigError(f"sandbox.docker_host: {self.host!r}: unix://… or tcp:// without TLS is supported")
        self._client: Client | None = None
        self._connecting = threading.Lock()

    async def call(
        self,
        what: str,
        function: Callable[[Client], T],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        too_late: Callable[[T], None] = lambda _: None,
    ) -> T:
        """The result of `function`; one that nobody waits for any more goes to `too_late`.

        Raises `Missing`, or `SandboxError` that names `what`.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if error is not None:
                if not answer.done():
                    answer.set_exception(error)
            elif answer.done():
                too_late(cast(T, result))
            else:
                answer.set_result(cast(T, result))

        def work() -> None:
            result, error = None, None
            try:
                self._require_answer()
                result = function(self._connect())
            except BaseException as raised:  # noqa: BLE001 (carried to the caller, whatever it is)
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, daemon=True, name=f"docker {what}").start()
        try:
            async with clock.timeout(timeout_s):
                return await answer
        except NotFound as error:
            raise Missing(f"{what}: {error.explanation}", {"call": what}) from None
        except _FAILURES as error:
            late = isinstance(error, TimeoutError)
            said = f"no answer in {timeout_s:g} s" if late else _words(error)
            raise SandboxError(f"{self.host}: {what}: {said}", {"call": what, "daemon": said}) from None

    async def open(self, what: str, function: Callable[[Client], Any]) -> Stream:
        """The stream of an attach or exec call, whose result is the SDK's socket."""
        return Stream(await self.call(what, lambda api: _descriptor(function(api)), too_late=os.close))

    def _require_answer(self) -> None:
        """Raises `OSError` when nobody listens. The SDK would leak a socket for each refused connection."""
        scheme, _, path = self.host.partition("://")
        if scheme == "unix":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(CALL_TIMEOUT_S)
                try:
                    sock.connect(path)
                except (FileNotFoundError, PermissionError) as error:
                    raise ConnectionError(error.strerror) from None

    def _connect(self) -> Client:
        with self._connecting:
            if self._client is None:
                # asked first, by a client that can be closed: version="auto" leaks its socket when there is no answer
                with contextlib.closing(self._new_client(docker.constants.MINIMUM_DOCKER_API_VERSION)) as probe:
                    version = str(probe.version(api_version=False)["ApiVersion"])
                self._client = self._new_client(version)
            return self._client

    def _new_client(self, version: str) -> Client:
        return docker.APIClient(self.host, version, timeout=int(CALL_TIMEOUT_S), max_pool_size=_POOL)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _descriptor(sock: Any) -> int:
    """A descriptor of our own; the SDK's response, which owns the socket, is closed."""
    fd = os.dup(sock.fileno())
    sock._response.close()
    return fd


def _words(error: BaseException) -> str:
    return str(error.explanation or error) if isinstance(error, APIError) else str(error) or repr(error)
