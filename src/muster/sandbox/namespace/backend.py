"""The namespace backend: sandboxes from bubblewrap, overlay layers, cgroups, and a bash on a terminal per session.

    fork:      layers + new writable layer ─► bubblewrap ─► PID 1 in its cgroups ─► service, shell "main", its state
    run:       command ─► answer | time-out: Ctrl-C, then kill what it started, else a new shell over the same files
    snapshot:  capture shell state ─► kill all ─► the writable layer is frozen; a new one comes with the next command
    keep:      at rest? ─► snapshot ─► written down (`kept`): its layers outlive this process, the next one adopts them
    close:     kill all, count; cgroup and layers are removed in the background

Law: a frozen layer is never written again. What a model does to its own shell is a result; what ends the
sandbox is `SandboxLost`, blamed by `ending`. No mount exists outside of a sandbox's own namespace, so a
killed controller leaves files and empty cgroups alone, which `state.reap` removes, but for what was kept.

As an ordinary user (user namespaces needed) these are weaker, unless a writable cgroup is delegated to us: memory
and CPU have no limit, and pids refused are not counted, though their limit holds. Disk quotas cannot be exact;
`chown`, `su` and images with another user do not work inside. Time-outs, polled disk limits, egress and isolation
are the same.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.config import SandboxConfig
from muster.sandbox.egress.door import Egress
from muster.sandbox.files import plain_directory
from muster.sandbox.kept import DAY_S, KEPT, KeptStates
from muster.sandbox.namespace.build.builder import ImageBuilder
from muster.sandbox.namespace.devices import DeviceNodes
from muster.sandbox.namespace.instance import Host, NamespaceSandbox
from muster.sandbox.namespace.isolation import seccomp
from muster.sandbox.namespace.isolation.view import Views
from muster.sandbox.namespace.janitor import Janitor, Retired
from muster.sandbox.namespace.storage.quota import Quota
from muster.sandbox.namespace.storage.state import RunDirectory, reap
from muster.sandbox.port import Mount, Snapshot
from muster.types import ImageSpec, Limits

REAP_S = 60.0
"""How often a running backend looks for what other, killed controllers left."""


class NamespaceBackend:
    """Makes sandboxes on this machine. Create it on the event loop that will use it.

    Example:
        backend = NamespaceBackend(SandboxConfig(), run="demo")
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="one")
        result = await sandbox.run("echo hello", timeout_s=5)
    """

    def __init__(self, config: SandboxConfig, *, run: str = "run", reap_every_s: float = REAP_S) -> None:
        """Raises `ConfigError` for a disk quota that this user cannot have."""
        config.state_dir.mkdir(parents=True, exist_ok=True)
        cgroups = Cgroups.detect()
        reap(config.state_dir, cgroups)
        directory = RunDirectory(config.state_dir, run)
        self._quota = Quota(directory.path) if config.disk_quota == "exact" else None
        filter_file = directory.path / "seccomp.bpf"
        filter_file.write_bytes(seccomp.program())
        self._host = Host(
            config=config,
            cgroups=cgroups,
            run=directory,
            kept=KeptStates(config.state_dir / KEPT, lifetime_s=config.keep_days * DAY_S),
            seccomp=filter_file,
            image_layers=config.state_dir / "images",
            egress=Egress(config.egress_networks),
            retire=self._retire,
            release=self._release,
            views=Views(directory.path / "tops", directory.short),
            devices=DeviceNodes(directory.path / "devices"),
        )
        self._janitor = Janitor(directory)
        self._reaper = asyncio.get_running_loop().create_task(self._reap_others(reap_every_s))
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._images = ImageBuilder(self._host)
        self._live: dict[str, NamespaceSandbox] = {}
        self._numbers = itertools.count()
        self._restoring = asyncio.Lock()
        self._closed = False

    async def prepare(self, image: ImageSpec) -> Snapshot:
        return await self._images.prepare(image)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> NamespaceSandbox:
        assert not self._closed, "the backend is closed"
        for mount in mounts:
            if not plain_directory(snapshot.layers, mount.target):
                raise SandboxStartError(
                    f"{mount.target} was replaced by a link or a file: nothing can be mounted there",
                    {"replaced": mount.target},
                )
        sandbox = NamespaceSandbox(
            self._host,
            id=f"{label}#{next(self._numbers)}",
            snapshot=snapshot,
            limits=self._host.config.complete(limits),
            mounts=mounts,
            toolchain=toolchain,
            quota=self._quota,
        )
        self._live[sandbox.id] = sandbox
        try:
            await sandbox.start()
        except BaseException:
            await sandbox.close()
            raise
        lifetime_s = self._host.config.max_lifetime_s
        if lifetime_s is not None:
            loop = asyncio.get_running_loop()
            self._expiries[sandbox.id] = loop.call_later(lifetime_s, sandbox.expire, lifetime_s)
        return sandbox

    async def restore(self, id: str) -> Snapshot | None:
        async with self._restoring:
            known = self._host.kept.get(id)
            if known is not None:
                return known
            snapshot = self._host.kept.load(id)
            if snapshot is None or not await asyncio.to_thread(self._host.run.adopt, snapshot.layers):
                return None
            self._host.kept.remember(snapshot)
            return snapshot

    async def discard(self, snapshot: Snapshot) -> None:
        if self._host.kept.get(snapshot.id) is not None:
            self._host.kept.remove(snapshot.id)
        self._janitor.release(snapshot.layers)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for sandbox in list(self._live.values()):
            await sandbox.close()
        self._reaper.cancel()
        await asyncio.gather(self._reaper, return_exceptions=True)
        await self._host.egress.close()
        await self._janitor.close()
        self._host.cgroups.remove_run(self._host.run.name, kill=True)
        await asyncio.to_thread(self._host.run.close)

    @property
    def live(self) -> int:
        """Sandboxes forked and not closed."""
        return len(self._live)

    def _retire(self, sandbox: NamespaceSandbox, retired: Retired) -> None:
        self._live.pop(sandbox.id, None)  # builds and controls are not registered
        expiry = self._expiries.pop(sandbox.id, None)
        if expiry is not None:
            expiry.cancel()
        self._janitor.retire(retired)

    def _release(self, layers: tuple[Path, ...]) -> None:
        self._janitor.release(layers)

    async def _reap_others(self, every_s: float) -> None:
        while True:
            await clock.sleep(every_s)
            await asyncio.to_thread(reap, self._host.config.state_dir, self._host.cgroups)
