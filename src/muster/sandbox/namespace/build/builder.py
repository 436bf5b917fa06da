"""Images: a task's `ImageSpec` to a snapshot, layer by layer, each layer found again by its content.

    name in FROM ─rootfs─► layers of a root file system, or the host-derived base layer
    Dockerfile ─dockerfile, recipe─► steps of each stage that the last one needs
        [MakeDirectory, Copy]* ─copying─► one layer, written on the host
        Run                    ─build──► one layer, from a sandbox over the layers so far
    ENTRYPOINT, CMD + health check ─build─► a service, started once; what that leaves is the last layer
    key(layer) = sha256(key(layer below), step, content of copied files)

Law: a layer appears whole or not at all, and the same content gives the same layer in every process; two tasks that
need the same layer at the same time wait for one build. A host-derived image with a RUN changes with the host's
packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import groupby
from pathlib import Path

from muster import clock
from muster.errors import ImageError, TaskError
from muster.sandbox.dockerfile.parsing import parse
from muster.sandbox.dockerfile.recipe import SCRATCH, Stages
from muster.sandbox.dockerfile.startup import Startup
from muster.sandbox.dockerfile.steps import Copy, FileStep, MakeDirectory, Origin, Run, RunMount
from muster.sandbox.namespace.build import base
from muster.sandbox.namespace.build.copying import CopyOrigin, FileLayer, context_place
from muster.sandbox.namespace.build.layers import BASE, LayerStore, Stack, digest
from muster.sandbox.namespace.build.provision import Provision
from muster.sandbox.namespace.build.rootfs import RootFs, RootFsStore
from muster.sandbox.namespace.build.run_mounts import RunMounts, bind_step
from muster.sandbox.namespace.build.tree import LayerTree
from muster.sandbox.namespace.build.workshop import Log, Workshop
from muster.sandbox.namespace.instance import Host
from muster.sandbox.port import Service, Snapshot
from muster.types import ImageSpec

_SLACK_S = 5.0  # for what a RUN that met the deadline itself has to say
_SHELLS = frozenset({"ash", "bash", "dash", "node", "python", "python3", "sh", "zsh"})
_FOREVER = ("sleep", "infinity")


class ImageBuilder:
    """Builder of image snapshots: `prepare`. Raises `ConfigError` at once for what `SandboxConfig.images` names."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.store = LayerStore(host.image_layers, host.run)
        self.rootfs = RootFsStore(host.config.images, self.store)
        self.provision = Provision(self.store)
        self.workshop = Workshop(host, self.store, self.provision)
        self._locks: dict[str, asyncio.Lock] = {}
        self._named: dict[str, RootFs] = {}
        self._import = asyncio.Lock()

    async def prepare(self, image: ImageSpec) -> Snapshot:
        """Raises `TaskError` for what the Dockerfile says, `ImageError` for what happens while building it."""
        try:
            async with clock.timeout(image.build_timeout_s + _SLACK_S):
                stages = await asyncio.to_thread(_read, image)
                return await _Build(self, image, stages, self._log(image)).snapshot()
        except TimeoutError:
            raise ImageError(f"{_name(image)}: not built in {image.build_timeout_s:g} s") from None
        except OSError as error:
            raise ImageError(f"{_name(image)}: cannot be built: {error}", {"error": repr(error)}) from error

    async def once(self, key: str, make: Callable[[], Awaitable[Path]]) -> Path:
        """The layer of that key, made unless it is there or on its way."""
        if self.store.has(key):
            return self.store.path(key)
        async with self._locks.setdefault(key, asyncio.Lock()):
            return self.store.path(key) if self.store.has(key) else await make()

    async def named(self, name: str) -> RootFs:
        """The image of that name, as it was when this backend first looked. One is read in at a time."""
        async with self._import:
            if name not in self._named:
                self._named[name] = await asyncio.to_thread(self._load, name)
            return self._named[name]

    def _load(self, name: str) -> RootFs:
        if name == SCRATCH:
            return self.rootfs.scratch()
        found = self.rootfs.load(name)
        if found is not None:
            return found
        key = f"{BASE}{base.digest()}"
        return RootFs(stack=Stack(key=key, layers=(self.store.layer(key, base.build),)), startup=Startup())

    def mounts(self, mounts: tuple[RunMount, ...], bound: Mapping[RunMount, FileLayer]) -> RunMounts:
        caches = self._host.config.state_dir / "caches"
        return RunMounts(mounts, bound=bound, caches=caches, new_directory=self._host.run.new_directory)

    def _log(self, image: ImageSpec) -> Log:
        file = image.dockerfile or Path(image.docker_image or "base")
        name = f"{file.absolute().parent.parent.name}-{digest(str(file.absolute()), image.target)[:8]}.log"
        return Log(self._host.config.state_dir / "logs" / name, deadline=clock.now() + image.build_timeout_s)


class _Build:
    """One preparation: the stages that were built, and where files come from."""

    def __init__(self, builder: ImageBuilder, image: ImageSpec, stages: Stages | None, log: Log) -> None:
        """`stages` None: the image has no Dockerfile."""
        self._builder = builder
        self._image = image
        self._stages = stages
        self._log = log
        self._file = _name(image)
        self._built: dict[int, tuple[Stack, Startup]] = {}
        self._context: CopyOrigin | None = None

    async def snapshot(self) -> Snapshot:
        image = self._image
        if self._stages is None:
            found = await self._builder.named(image.docker_image or "")
            stack, startup = found.stack, found.startup
        else:
            stack, startup = await self._stage(self._stages, self._stages.target(image.target))
        workdir = image.workdir or startup.workdir
        if LayerTree(stack.layers, host_usr=stack.host_usr).entry(workdir) is None:
            stack = await self._files((MakeDirectory(path=workdir),), stack)
        self._require_bash(stack)
        snapshot = Snapshot(
            id=f"image-{stack.key}",
            layers=stack.layers,
            workdir=workdir,
            env={**startup.env, **image.env},
            user=image.user or startup.user,
        )
        service = _service(image, startup)
        return snapshot if service is None else await self._with_service(snapshot, stack, service)

    async def _with_service(self, snapshot: Snapshot, stack: Stack, service: Service) -> Snapshot:
        key = digest(stack.key, service, snapshot.workdir, sorted(snapshot.env.items()), snapshot.user)
        layer = await self._builder.once(
            key,
            lambda: self._builder.workshop.start_service(snapshot, service, key, where=self._file, log=self._log),
        )
        return Snapshot(
            id=f"image-{key}",
            layers=(*snapshot.layers, layer),
            workdir=snapshot.workdir,
            env=snapshot.env,
            user=snapshot.user,
            service=service,
        )

    # --- stages -----------------------------------------------------------------------------------------

    async def _stage(self, stages: Stages, number: int) -> tuple[Stack, Startup]:
        """Only what the target needs is built, each stage once."""
        if number in self._built:
            return self._built[number]
        below = stages.base(number)
        if isinstance(below, int):
            stack, startup = await self._stage(stages, below)
        else:
            found = await self._builder.named(below)
            stack, startup = found.stack, found.startup
        recipe = stages.recipe(number, startup)
        if any(isinstance(step, Run) for step in recipe.steps):
            stack = await self._with_packages(stack)
        for is_run, steps in groupby(recipe.steps, key=lambda step: isinstance(step, Run)):
            if not is_run:
                stack = await self._files(tuple(s for s in steps if not isinstance(s, Run)), stack)
                continue
            for step in steps:
                assert isinstance(step, Run)
                stack = await self._run(step, stack)
        self._built[number] = stack, recipe.startup
        return self._built[number]

    async def _with_packages(self, stack: Stack) -> Stack:
        """Over the host's /usr: the host's package database, just above the base layer."""
        if not stack.host_usr or any(layer.name.startswith("packages-") for layer in stack.layers):
            return stack
        packages = await asyncio.to_thread(lambda: self._builder.provision.packages)
        if packages is None:
            return stack
        return Stack(key=digest(stack.key, packages.name), layers=(stack.layers[0], packages, *stack.layers[1:]))

    # --- steps ------------------------------------------------------------------------------------------

    async def _files(self, steps: tuple[FileStep, ...], stack: Stack) -> Stack:
        origins = {step.origin for step in steps if isinstance(step, Copy)}
        places = {origin: await self._place(origin) for origin in origins}
        plan = await asyncio.to_thread(FileLayer, steps, file=self._file, places=places, below=stack)
        key = await asyncio.to_thread(plan.key, stack.key)
        layer = await self._builder.once(key, lambda: asyncio.to_thread(self._builder.store.layer, key, plan.write))
        return stack.on_top(key, layer)

    async def _run(self, step: Run, stack: Stack) -> Stack:
        builder = self._builder
        mounts = builder.mounts(step.mounts, {m: await self._bound(step, m) for m in step.mounts if m.binds})
        inputs = await asyncio.to_thread(mounts.key)
        facts = (step.command, sorted(step.env.items()), step.workdir, step.user, step.network, inputs)
        key = digest(stack.key, facts)

        async def make() -> Path:
            self._require_bash(stack)
            where = f"{self._file}:{step.line}: RUN {step.text}"
            async with mounts.opened() as opened:
                return await builder.workshop.run(step, stack, key, mounts=opened, where=where, log=self._log)

        return stack.on_top(key, await builder.once(key, make))

    async def _bound(self, step: Run, mount: RunMount) -> FileLayer:
        copy, places = bind_step(step.line, mount), {mount.origin: await self._place(mount.origin)}
        return await asyncio.to_thread(FileLayer, (copy,), file=self._file, places=places, below=None)

    async def _place(self, origin: Origin) -> CopyOrigin:
        if origin is None:
            return self._context_place()
        if isinstance(origin, int):
            assert self._stages is not None
            stack, _ = await self._stage(self._stages, origin)
            name = f"stage {self._stages.dockerfile.stages[origin].name or origin}"
        else:
            stack = (await self._builder.named(origin)).stack
            name = f"the image {origin}"
            if stack.host_usr:
                name += f" (which is this machine's own: name another in sandbox.images, as '{origin}' = 'FILE.tar')"
        return CopyOrigin(name=name, tree=LayerTree(stack.layers, host_usr=stack.host_usr), key=stack.key)

    def _context_place(self) -> CopyOrigin:
        image = self._image
        context = image.context or (image.dockerfile.parent if image.dockerfile else None)
        if context is None or not context.is_dir():
            raise TaskError(f"{self._file}: COPY: there is no build context {context or ''}")
        self._context = self._context or context_place(context, image.dockerfile)
        return self._context

    def _require_bash(self, stack: Stack) -> None:
        if stack.host_usr or LayerTree(stack.layers).entry("/bin/bash") is not None:
            return
        raise TaskError(
            f"{self._file}: the image has no /bin/bash, with which a sandbox runs commands: "
            "build on an image that has it, or COPY it in before the first RUN"
        )


def _name(image: ImageSpec) -> str:
    return str(image.dockerfile or image.docker_image or "the base image")


def _read(image: ImageSpec) -> Stages | None:
    file = image.dockerfile
    if file is None:
        return None
    try:
        text = file.read_text()
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: is not UTF-8 text: {error}") from None
    return Stages(parse(text, file), image.build_args)


def _service(image: ImageSpec, startup: Startup) -> Service | None:
    """With a health check, the image's own process. A shell that nobody types into would end at once."""
    check = image.health or startup.health
    if check is None:
        return None
    entrypoint = image.entrypoint or startup.entrypoint
    argv = (*entrypoint, *(image.command or (() if image.entrypoint else startup.command)))
    idle = not argv or (len(argv) == 1 and Path(argv[0]).name in _SHELLS)
    return Service(command=_FOREVER if idle else argv, check=check, user=startup.user)
