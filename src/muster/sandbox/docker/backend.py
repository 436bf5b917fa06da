"""The docker backend: sandboxes as containers of a Docker or Podman daemon.

    prepare:  at first what killed controllers left is removed
              Dockerfile, image name or base ─► image at the daemon (`image`)
    fork:     create ─► mounts plain? ─► start ─► supervisor answers ─► service healthy ─► a shell answers
    run, snapshot, keep, close: `instance`; what is left behind: `janitor`, and by label `labels`

Law: everything made at the daemon carries labels that say who made it, so that nothing depends on a list in memory.
Every call has a deadline from outside; a daemon that hangs costs sandboxes, never the run.

Weaker than the namespace backend: egress is none or everything; commands have no terminal; the disk limit is polled,
and counters are known, where the daemon runs on this machine (elsewhere a limit holds for single files alone); a chain
of snapshots of forks of snapshots ends at the storage driver's number of layers (about 120).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from contextlib import suppress
from dataclasses import replace

from muster.errors import ImageError, SandboxError, SandboxStartError
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker import files
from muster.sandbox.docker.box import Box
from muster.sandbox.docker.container import Bind, Container, network
from muster.sandbox.docker.daemon import Daemon
from muster.sandbox.docker.image import REPOSITORY, Images
from muster.sandbox.docker.instance import DaemonHost, DockerSandbox
from muster.sandbox.docker.janitor import ContainerJanitor
from muster.sandbox.docker.labels import CONTROLLER, RUN, Owner, Removed, reap, remove
from muster.sandbox.docker.toolchain import Toolchain, copy
from muster.sandbox.kept import DAY_S, KEPT, KeptStates
from muster.sandbox.port import Mount, Snapshot
from muster.types import ImageSpec, Limits


class DockerBackend:
    """Makes sandboxes at a daemon. Create it on the event loop that will use it.

    Example:
        backend = DockerBackend(SandboxConfig(docker_host="unix:///run/podman/podman.sock"), run="demo")
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="one")
        result = await sandbox.run("echo hello", timeout_s=5)
    """

    def __init__(self, config: SandboxConfig, *, run: str = "run") -> None:
        """Raises `ConfigError` for a `docker_host` that is not supported. The daemon is asked at the first call."""
        self._config = config
        self._daemon = Daemon(config.docker_host)
        self._owner = Owner.here(run)
        self._images = Images(self._daemon, config)
        self._janitor = ContainerJanitor(self._daemon)
        self._kept = KeptStates(config.state_dir / KEPT, lifetime_s=config.keep_days * DAY_S)
        self._host = DaemonHost(
            config=config,
            daemon=self._daemon,
            kept=self._kept,
            starts=self._starts,
            discard=self._janitor.discard,
            retire=self._retire,
        )
        self._live: dict[str, DockerSandbox] = {}
        self._toolchains: dict[str, asyncio.Task[Toolchain]] = {}
        self._preparing = asyncio.Lock()
        self._numbers = itertools.count()
        self._reaped = self._closed = False

    async def prepare(self, image: ImageSpec) -> Snapshot:
        async with self._preparing:  # siblings ask for the same image at the same time
            if not self._reaped:
                self._reaped = True
                with suppress(SandboxError):  # what follows meets the same trouble, and says so
                    await self.reap()
            snapshot = await self._images.prepare(image)
            return snapshot if snapshot.service is None else await self._serve(snapshot)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> DockerSandbox:
        assert not self._closed, "the backend is closed"
        binds = tuple(Bind(source=m.source, target=m.target, writable=m.writable) for m in mounts)
        tools = (await self._tools(toolchain)).binds if toolchain is not None else ()
        sandbox = await self._create(snapshot, self._config.complete(limits), label, (*tools, *binds))
        try:
            await self._require_plain(sandbox, [m.target for m in mounts])
            await sandbox.start()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def restore(self, id: str) -> Snapshot | None:
        snapshot = self._kept.get(id) or self._kept.load(id)
        if snapshot is None:
            return None
        try:
            await self._daemon.call("inspect image", lambda api: api.inspect_image(id))
        except SandboxError:  # gone, or nobody can tell
            return None
        self._kept.remember(snapshot)
        return snapshot

    async def discard(self, snapshot: Snapshot) -> None:
        self._kept.remove(snapshot.id)
        self._janitor.discard(snapshot.id)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for sandbox in list(self._live.values()):
            await sandbox.close()
        await asyncio.gather(*self._toolchains.values(), return_exceptions=True)
        await self._janitor.close()
        with suppress(SandboxError):  # the daemon is gone: another controller finds our labels
            await remove(self._daemon, {RUN: self._owner.run, CONTROLLER: self._owner.controller})
        self._daemon.close()

    async def reap(self) -> Removed:
        """Remove what killed controllers of this machine left at the daemon. Raises `SandboxError`."""
        return await reap(self._daemon)

    @property
    def live(self) -> int:
        """Sandboxes forked and not closed."""
        return len(self._live)

    # --- forks ------------------------------------------------------------------------------------------

    async def _create(
        self, snapshot: Snapshot, limits: Limits, label: str, binds: tuple[Bind, ...] = ()
    ) -> DockerSandbox:
        name = f"{label}#{next(self._numbers)}"
        container = Container(
            image=snapshot.id,
            labels=self._owner.labels(name),
            limits=limits,
            network=network(limits),
            workdir=snapshot.workdir,
            env=snapshot.env,
            binds=binds,
        )
        box = await Box.create(self._daemon, container, start_timeout_s=self._config.start_timeout_s)
        sandbox = DockerSandbox(self._host, box, id=name, snapshot=snapshot, limits=limits)
        self._live[name] = sandbox
        return sandbox

    async def _require_plain(self, sandbox: DockerSandbox, targets: list[str]) -> None:
        box = sandbox.box
        for target in targets:
            if not await box.call("stat", lambda api, t=target: files.plain_directory(api, box.container, t)):
                raise SandboxStartError(
                    f"{target} was replaced by a link or a file: nothing can be mounted there", {"replaced": target}
                )

    async def _starts(self, snapshot: Snapshot) -> bool:
        """The control: whether a fresh container of a snapshot answers, without what its shell remembers."""
        plain = replace(snapshot, shell_state="", service=None)
        try:
            control = await self._create(plain, self._config.complete(Limits()), "control")
        except SandboxError:
            return False
        try:
            await control.start()
        except SandboxError:
            return False
        finally:
            await control.close()
        return True

    def _retire(self, sandbox: DockerSandbox) -> None:
        self._live.pop(sandbox.id, None)
        self._janitor.retire(sandbox.box.container)

    # --- what is made once ------------------------------------------------------------------------------

    async def _tools(self, toolchain: Snapshot) -> Toolchain:
        """Copied once for each image, by whoever asks first."""
        if toolchain.id not in self._toolchains:
            key = hashlib.sha256(f"{self._owner.controller} {self._owner.run} {toolchain.id}".encode()).hexdigest()
            work = copy(self._daemon, self._owner, toolchain.id, f"muster-tools-{key[:24]}")
            self._toolchains[toolchain.id] = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(self._toolchains[toolchain.id])

    async def _serve(self, snapshot: Snapshot) -> Snapshot:
        """The image with its service's first start behind it: started, healthy, frozen, kept as an image of its own."""
        known = repr((snapshot.id, snapshot.service, sorted(snapshot.env.items()), snapshot.user))
        tag = f"served-{hashlib.sha256(known.encode()).hexdigest()[:32]}"
        found = await self._images.find(f"{REPOSITORY}:{tag}")
        if found is not None:
            return replace(snapshot, id=found)
        try:
            sandbox = await self._create(snapshot, self._config.complete(Limits()), "service")
            try:
                await sandbox.start()
                # a cached image belongs to nobody
                nobody = [f'LABEL {CONTROLLER}="" {RUN}=""']
                image = await sandbox.freeze(repository=REPOSITORY, tag=tag, changes=nobody)
            finally:
                await sandbox.close()
        except SandboxError as error:
            raise ImageError(str(error), error.evidence) from error
        return replace(snapshot, id=image)
