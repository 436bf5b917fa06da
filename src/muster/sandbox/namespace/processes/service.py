"""An image's own main process, started in the files of a fork and asked whether it works.

    launch ─► argv, its output to a tap of its own
    wait_healthy ─► `health`, asked in a shell of its own

Law: the service is not a command: nobody interrupts it, and it dies with the sandbox's processes alone. Whether an
unhealthy one matters is for the caller to say.
"""

from __future__ import annotations

import os
import shlex

from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.health import wait_healthy
from muster.sandbox.namespace.processes.channel import Channel
from muster.sandbox.namespace.processes.session import TerminalShell
from muster.sandbox.namespace.processes.supervisor import Child, Supervisor
from muster.sandbox.namespace.processes.tap import Tap
from muster.sandbox.port import Service

_EVIDENCE_BYTES = 4096


class RunningService:
    """Main process of an image, running. Made by `launch`."""

    def __init__(self, service: Service, supervisor: Supervisor, child: Child, channel: Channel, tap: Tap) -> None:
        self._service = service
        self._supervisor = supervisor
        self._child = child
        self._channel: Channel | None = channel
        self._tap = tap

    @classmethod
    async def launch(
        cls, service: Service, supervisor: Supervisor, *, user: str | None, greeting: str
    ) -> RunningService:
        """Raises `SandboxStartError`. `greeting`: bash source that runs before it, in its own process."""
        try:
            channel = Channel.open(supervisor.root, terminal=False)
        except OSError as error:
            raise SandboxStartError(f"the image's service does not start: {error.strerror}") from None
        tap = Tap(_EVIDENCE_BYTES)
        tap.add(channel.output)
        try:
            channel.write(f"exec 41>&- 42<&-\n{greeting}\nexec {shlex.join(service.command)}")
            child = await supervisor.launch(channel.id, terminal=None, user=user)
        except (SandboxError, OSError) as error:
            tap.close()
            _leave(channel)
            raise SandboxStartError(f"the image's service does not start: {error}") from None
        return cls(service, supervisor, child, channel, tap)

    @property
    def pid(self) -> int | None:
        """The host's number; a daemon's own child is elsewhere."""
        return self._child.pid

    async def wait_healthy(self, asker: TerminalShell, *, required: bool) -> None:
        """Checks run in the shell `asker`. Raises `SandboxStartError` for one that is `required` and not healthy."""
        try:
            await wait_healthy(
                self._service,
                required=required,
                ask=asker.ask,
                exit_code=self._exit_code,
                said=lambda: self._tap.take().text(),
            )
        finally:
            self._forget_channel()  # it has read what it was to do

    async def _exit_code(self) -> int | None:
        return await self._supervisor.exit_code(self._child) if self._child.ended.done() else None

    def close(self) -> None:
        self._child.close()
        self._tap.close()
        self._forget_channel()

    def _forget_channel(self) -> None:
        if self._channel is not None:
            _leave(self._channel)
            self._channel = None


def _leave(channel: Channel) -> None:
    channel.hide()
    os.close(channel.source)
