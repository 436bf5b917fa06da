"""Commands of an image build that run in a sandbox: RUN, and the first start of a service.

    layers so far + what the machine lends ─► sandbox ─► command ─► its writable layer, moved to the store
                                                     └─► the build log, <state_dir>/logs/<name>.log

Law: a command that fails, or a service that is not healthy, is an `ImageError` with the last lines of its output and
the place of the whole log; nothing is kept of it. The network, where RUN has one, is the proxy for public hosts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from muster import clock
from muster.errors import ImageError, SandboxError
from muster.sandbox.config import MIB
from muster.sandbox.dockerfile.steps import Run
from muster.sandbox.files import plain_directory
from muster.sandbox.namespace.build.layers import LayerStore, Stack
from muster.sandbox.namespace.build.provision import Provision
from muster.sandbox.namespace.instance import Host, NamespaceSandbox
from muster.sandbox.port import Mount, Service, Snapshot
from muster.types import Limits

_DISK_BYTES = 8192 * MIB
_MEMORY_BYTES = 4096 * MIB
_PIDS = 4096
_LOG_CAP_BYTES = 4 * MIB  # of one command: half head, half tail
_SHOWN_LINES = 30


class Log:
    """The log of one build, written as it goes. A build that finds all in the cache leaves the last one as it is."""

    def __init__(self, path: Path, *, deadline: float) -> None:
        """`deadline`: when the whole build must be done, on `clock.now()`."""
        self.path = path
        self.deadline = deadline
        self._begun = False

    def add(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a" if self._begun else "w") as file:
            file.write(text)
        self._begun = True

    def error(self, what: str, output: str) -> ImageError:
        shown = "\n".join(output.rstrip().splitlines()[-_SHOWN_LINES:])
        return ImageError(f"{what}\n{shown}\nThe whole log: {self.path}", {"log": shown, "log_file": str(self.path)})


class Workshop:
    """Runner of an image build's commands, each in a sandbox.

    Example: `layer = await workshop.run(step, stack, key, mounts=(), where="Dockerfile:3", log=log)`
    """

    def __init__(self, host: Host, store: LayerStore, provision: Provision) -> None:
        config = host.config
        self._host = replace(host, config=config.model_copy(update={"output_cap_bytes": _LOG_CAP_BYTES}))
        self._store = store
        self._provision = provision

    async def run(self, step: Run, stack: Stack, key: str, *, mounts: Sequence[Mount], where: str, log: Log) -> Path:
        """The layer that the command makes on top of `stack`, stored as `key`."""
        for mount in mounts:
            if not plain_directory(stack.layers, mount.target):
                raise ImageError(f"{where}: {mount.target} is a link or a file: nothing can be mounted there")
        lent = await asyncio.to_thread(self._provision.lent, host_usr=stack.host_usr)
        env = {**await asyncio.to_thread(self._provision.env, host_usr=stack.host_usr), **step.env}
        network = step.network and self._host.config.egress != "none"
        sandbox = NamespaceSandbox(
            self._host,
            id=f"build#{key}",
            snapshot=Snapshot(
                id=f"build-{key}",
                layers=(stack.layers[0], lent, *stack.layers[1:]),
                workdir=step.workdir,
                env=env,
                user=step.user,
            ),
            limits=_limits(network=network),
            mounts=tuple(mounts),
            writable_usr=True,
        )
        try:
            await sandbox.start()
            left_s = max(0.0, log.deadline - clock.now())
            log.add(f"--- {where}\n")
            result = await sandbox.run(step.command, left_s)
            log.add(f"{result.output}\n--- exit code {result.exit_code}, {result.duration_s:.1f} s\n")
            if result.timed_out:
                raise log.error(
                    f"{where}: not done in {left_s:.0f} s, what was left of the build's time", result.output
                )
            if result.exit_code != 0:
                killed = " (out of memory)" if result.out_of_memory else ""
                raise log.error(f"{where}: exit code {result.exit_code}{killed}{_hint(stack)}", result.output)
            return self._store.publish(await sandbox.harvest(), key)
        except SandboxError as error:
            raise ImageError(f"{where}: {error}", error.evidence) from error
        finally:
            await sandbox.close()

    async def start_service(self, snapshot: Snapshot, service: Service, key: str, *, where: str, log: Log) -> Path:
        """The layer that the first start of the service leaves, once it is healthy."""
        sandbox = NamespaceSandbox(
            self._host,
            id=f"service#{key}",
            snapshot=replace(snapshot, service=replace(service, required=True)),
            limits=_limits(network=False),
        )
        try:
            async with clock.timeout(log.deadline - clock.now()):
                await sandbox.start()
            return self._store.publish(await sandbox.harvest(), key)
        except TimeoutError:
            raise ImageError(f"{where}: the service was not healthy before the build's time was up") from None
        except SandboxError as error:
            output = str(error.evidence.get("output", ""))
            log.add(f"--- {where}: service\n{error}\n{output}\n")
            raise log.error(f"{where}: {error}", output) from error
        finally:
            await sandbox.close()


def _hint(stack: Stack) -> str:
    if os.geteuid() == 0 or not stack.host_usr:
        return ""
    return " (an ordinary user's build cannot change the host's /usr: name a root file system in sandbox.images)"


def _limits(*, network: bool) -> Limits:
    """Builds are of the task's author: generous, so that only a runaway meets them."""
    return Limits(memory_bytes=_MEMORY_BYTES, disk_bytes=_DISK_BYTES, pids=_PIDS, egress=("*",) if network else ())
