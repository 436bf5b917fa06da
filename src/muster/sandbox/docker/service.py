"""The image's own main process in a container, and whether it is healthy.

    spawn ─► probe after 10 ms, 20, 40 … ─► healthy │ it ended │ out of patience ─► SandboxStartError, if required

Law: the patience is `service.next_ask_s`'s, as for every backend. A probe runs in a shell of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.docker.box import Process
from muster.sandbox.health import Unhealthy, next_ask_s
from muster.sandbox.port import Service

Probe = Callable[[str, float], Awaitable[tuple[int | None, str]]]
"""Runs a command with a deadline: its exit code (None: it had to be ended) and its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """A started service."""

    service: Service
    process: Process
    exit_code: Callable[[], Awaitable[int | None]]

    async def wait(self, probe: Probe) -> None:
        """Until it is healthy, or hopeless: then raises `SandboxStartError` with the evidence, if it is required."""
        trouble = await self._ask(probe)
        if trouble is not None and self.service.required:
            said = " ".join(self.service.command)
            raise SandboxStartError(f"the image's service `{said}`: {trouble.reason}", trouble.evidence())

    async def _ask(self, probe: Probe) -> Unhealthy | None:
        check = self.service.check
        started = clock.now()
        asked, said = 0, ""
        while (pause_s := next_ask_s(check, asked=asked, elapsed_s=clock.now() - started)) is not None:
            await clock.sleep(pause_s)
            code, said = await probe(check.command, check.timeout_s)
            if code == 0:
                return None
            asked += 1
            if not self.process.stream.open and (ended := await self.exit_code()):
                return self._unhealthy("it ended", said, ended)  # with 0 it may be a daemon, which lives on
        return self._unhealthy(f"its check failed {asked} times", said, None)

    def _unhealthy(self, reason: str, said: str, ended: int | None) -> Unhealthy:
        return Unhealthy(reason=reason, output=self.process.said.text(), check_output=said, exit_code=ended)
