"""Parts of the hostile tests: one command in a sandbox that must answer afterwards."""

from __future__ import annotations

import asyncio

from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Result, Sandbox
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

MIB = 1024 * 1024


async def fresh(backend: NamespaceBackend, limits: Limits | None = None) -> Sandbox:
    start = await backend.prepare(ImageSpec(workdir="/app"))
    return await backend.fork(start, limits=limits or Limits(), label="hostile")


def one(
    on_backend: OnBackend, command: str, timeout_s: float = 5, limits: Limits | None = None, **config: object
) -> Result:
    """The result of one command; afterwards the sandbox must still answer."""
    results: list[Result] = []

    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend, limits)
        results.append(await sandbox.run(command, timeout_s))
        for _ in range(50):  # what a bomb left behind may need a moment to die
            after = await sandbox.run("echo still here", timeout_s=5)
            if after.output == "still here\n":
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it does not answer any more")

    on_backend(body, **config)
    return results[0]
