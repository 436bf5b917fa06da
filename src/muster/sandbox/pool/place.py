"""A place in a sandbox: what a lease hands out, while the sandbox behind it may be another one after a pause.

    LeasedSandbox ─► sandbox ─ kept, closed ─► (waits for a slot) ─► a fork of the kept state ◄─ the same LeasedSandbox

Law: whoever holds a place notices nothing between two turns but the time. While it waits nobody may call it.
"""

from __future__ import annotations

from muster.sandbox.port import MAIN, Counters, Result, Sandbox, Snapshot


class LeasedSandbox:
    """Implements `sandbox.port.Sandbox` by the one that is there now."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.move(sandbox)

    def move(self, sandbox: Sandbox) -> None:
        """From now on it is this one."""
        self.sandbox = sandbox
        self.id = sandbox.id

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        return await self.sandbox.run(command, timeout_s, silence_s=silence_s, session=session)

    async def read(self, path: str) -> bytes:
        return await self.sandbox.read(path)

    async def write(self, path: str, data: bytes) -> None:
        await self.sandbox.write(path, data)

    async def snapshot(self) -> Snapshot:
        return await self.sandbox.snapshot()

    async def keep(self) -> Snapshot | None:
        return await self.sandbox.keep()

    async def alive(self) -> bool:
        return await self.sandbox.alive()

    async def close(self) -> Counters:
        return await self.sandbox.close()
