"""Images: a Dockerfile executed layer by layer, each layer found again by its content.

    Dockerfile ─parse─► steps ─► [MakeDirectory, Copy]* ─► one layer, written on the host
                                 Run                    ─► one layer, from a sandbox over the layers so far
    key(layer) = sha256(key(layer below), step, content of copied files)

Law: a layer appears whole or not at all (built aside, then renamed), and the same content gives the same layer
in every process. FROM names any image: all map to the host-derived base layer. RUN has no network; it alone
may write to /usr. A killed build leaves its half in the run directory, which is reaped.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from muster import clock
from muster.errors import ImageError, SandboxError, TaskError
from muster.sandbox import base
from muster.sandbox.config import MIB
from muster.sandbox.dockerfile import Copy, MakeDirectory, Recipe, Run, parse
from muster.sandbox.instance import Host, NamespaceSandbox
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits

_BUILD_DISK_BYTES = 8192 * MIB
_MAX_LINKS = 40
FileStep = MakeDirectory | Copy


class ImageBuilder:
    """`prepare` gives the snapshot of an image. Concurrent calls for the same Dockerfile build it once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._store = host.image_layers
        self._store.mkdir(parents=True, exist_ok=True)
        self._base_digest = base.digest()
        self._locks: dict[Path | None, asyncio.Lock] = {}

    async def prepare(self, image: ImageSpec) -> Snapshot:
        """Raises `TaskError` for what the Dockerfile says, `ImageError` for what happens while building it."""
        async with self._locks.setdefault(image.dockerfile, asyncio.Lock()):
            try:
                async with clock.timeout(image.build_timeout_s):
                    return await self._prepare(image)
            except TimeoutError:
                raise ImageError(f"{image.dockerfile}: not built in {image.build_timeout_s:g} s") from None

    async def _prepare(self, image: ImageSpec) -> Snapshot:
        recipe = _read(image.dockerfile)
        context = image.context or (image.dockerfile.parent if image.dockerfile else None)
        key = f"base-{self._base_digest}"
        layers = [self._layer(key, base.build)]
        pending: list[FileStep] = []
        for step in (*recipe.steps, None):
            if isinstance(step, MakeDirectory | Copy):
                pending.append(step)
                continue
            if pending:
                plan = _Files(steps=tuple(pending), file=image.dockerfile, context=context, lower=tuple(layers))
                key = plan.key(key)
                layers.append(self._layer(key, plan.write))
                pending = []
            if step is not None:
                key = _digest(key, step)
                layers.append(await self._run_layer(key, step, tuple(layers), image))
        return Snapshot(
            id=f"image-{key}",
            layers=tuple(layers),
            workdir=image.workdir or recipe.workdir,
            env={**recipe.env, **image.env},
        )

    def _layer(self, key: str, write: Callable[[Path], None]) -> Path:
        """The layer of that key, written by `write` unless it is there."""
        layer = self._store / key
        if not layer.is_dir():
            aside = self._host.run.new_directory()
            write(aside)
            aside.chmod(0o755)
            _publish(aside, layer)
        return layer

    async def _run_layer(self, key: str, step: Run, layers: tuple[Path, ...], image: ImageSpec) -> Path:
        layer = self._store / key
        if layer.is_dir():
            return layer
        sandbox = NamespaceSandbox(
            self._host,
            id=f"build#{key}",
            snapshot=Snapshot(id=f"build-{key}", layers=layers, workdir=step.workdir, env=step.env),
            limits=self._host.config.complete(Limits(disk_bytes=_BUILD_DISK_BYTES, pids=None)),
            writable_usr=True,
        )
        where = f"{image.dockerfile}:{step.line}: RUN {step.command}"
        try:
            await sandbox.start()
            result = await sandbox.run(f"/bin/sh -c {shlex.quote(step.command)}", image.build_timeout_s)
            if result.exit_code != 0:
                raise ImageError(f"{where}: exit code {result.exit_code}\n{result.output}", {"log": result.output})
            _publish(await sandbox.harvest(), layer)
        except SandboxError as error:
            raise ImageError(f"{where}: {error}", error.evidence) from error
        finally:
            await sandbox.close()
        return layer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """A COPY whose sources were found in the build context."""

    step: Copy
    sources: list[Path]


class _Files:
    """Consecutive file steps: their key, and the layer they make."""

    def __init__(
        self, *, steps: tuple[FileStep, ...], file: Path | None, context: Path | None, lower: tuple[Path, ...]
    ) -> None:
        self._lower = lower
        self._moves = tuple(
            _Copying(step=step, sources=_sources(step, file, context)) if isinstance(step, Copy) else step
            for step in steps
        )

    def key(self, below: str) -> str:
        state = hashlib.sha256(below.encode())
        for move in self._moves:
            if isinstance(move, MakeDirectory):
                state.update(f"directory {move.path}\0".encode())
                continue
            state.update(f"copy {move.step.target} {move.step.mode}\0".encode())
            for source in move.sources:
                for path in _tree(source):
                    content = os.fsencode(path.readlink()) if path.is_symlink() else _content(path)
                    mode = 0 if path.is_symlink() else path.stat().st_mode
                    state.update(f"{path.relative_to(source.parent)} {mode:o} {len(content)}\0".encode())
                    state.update(content)
        return state.hexdigest()[:24]

    def write(self, layer: Path) -> None:
        for move in self._moves:
            if isinstance(move, MakeDirectory):
                self._directory(layer, move.path)
                continue
            target = move.step.target
            into = target.endswith("/") or len(move.sources) > 1
            for source in move.sources:
                if source.is_dir():
                    self._copy_tree(source, layer, move.step)
                else:
                    path = PurePosixPath(target + source.name if into else target)
                    parent = self._directory(layer, str(path.parent))
                    _copy_file(source, parent / path.name, move.step.mode)

    def _copy_tree(self, source: Path, layer: Path, step: Copy) -> None:
        """The content of `source`, not its name, as Docker does."""
        self._directory(layer, step.target)
        for path in _tree(source):
            inner = PurePosixPath(step.target) / path.relative_to(source)
            if path.is_dir() and not path.is_symlink():
                self._directory(layer, str(inner))
            else:
                _copy_file(path, self._directory(layer, str(inner.parent)) / path.name, step.mode)

    def _directory(self, layer: Path, path: str) -> Path:
        """Make `path` in `layer`, where links of the layers below lead it, with the modes it has there."""
        made = layer
        for part in _resolve((*self._lower, layer), path).parts[1:]:
            made = made / part
            if not made.is_dir():
                made.mkdir()
                below = _below(self._lower, made.relative_to(layer))
                made.chmod(0o755 if below is None else below.lstat().st_mode & 0o7777)
        return made


def _read(dockerfile: Path | None) -> Recipe:
    if dockerfile is None:
        return Recipe()
    try:
        return parse(dockerfile.read_text(), dockerfile)
    except OSError as error:
        raise TaskError(f"{dockerfile}: cannot be read: {error.strerror}") from None


def _sources(step: Copy, file: Path | None, context: Path | None) -> list[Path]:
    """Files and directories of the context that a COPY names. None may lie outside of it."""
    where = f"{file}:{step.line}: COPY"
    if context is None:
        raise TaskError(f"{where}: there is no build context")
    root = context.resolve()
    found: list[Path] = []
    for pattern in step.sources:
        relative = pattern.lstrip("/") or "."
        matches = sorted(context.glob(relative)) if any(c in relative for c in "*?[") else [context / relative]
        for match in matches:
            if not match.resolve().is_relative_to(root):
                raise TaskError(f"{where}: {pattern!r} leads out of the build context {context}")
        matches = [m for m in matches if m.exists()]
        if not matches:
            raise TaskError(f"{where}: there is no {pattern!r} in the build context {context}")
        found += [Path(os.path.normpath(m)) for m in matches]
    return found


def _tree(path: Path) -> list[Path]:
    """`path` itself if it is a file, else everything below it, sorted."""
    return sorted(path.rglob("*")) if path.is_dir() else [path]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _copy_file(source: Path, target: Path, mode: int | None) -> None:
    if target.is_dir() and not target.is_symlink():
        target = target / source.name
    target.unlink(missing_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)
    if not target.is_symlink():
        target.chmod(source.stat().st_mode & 0o777 if mode is None else mode)
        os.chown(target, os.geteuid(), os.getegid())


def _below(layers: tuple[Path, ...], inner: Path) -> Path | None:
    """The topmost directory that `inner` has in the layers below; /usr is the host's at the bottom."""
    for layer in (*reversed(layers), Path("/")):
        if (layer != Path("/") or inner.parts[0] == "usr") and (layer / inner).is_dir():
            return layer / inner
    return None


def _resolve(layers: tuple[Path, ...], path: str) -> Path:
    """`path` with the links in `layers` followed, each as seen from the image's own root."""
    done, todo = Path("/"), [part for part in path.split("/") if part]
    for _ in range(_MAX_LINKS + len(todo) * _MAX_LINKS):
        if not todo:
            return done
        part = todo.pop(0)
        inner = (done / part).relative_to("/")
        entry = next((layer / inner for layer in reversed(layers) if os.path.lexists(layer / inner)), None)
        if part == "..":
            done = done.parent
        elif entry is not None and entry.is_symlink():
            target = os.readlink(entry)  # noqa: PTH115
            done = Path("/") if target.startswith("/") else done
            todo = [p for p in target.split("/") if p and p != "."] + todo
        else:
            done = done / part
    raise TaskError(f"{path}: too many links")


def _digest(below: str, step: Run) -> str:
    text = repr((below, step.command, sorted(step.env.items()), step.workdir))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _publish(aside: Path, layer: Path) -> None:
    """Move a finished layer to its name. Another process may have been first; both made the same."""
    try:
        aside.rename(layer)
    except OSError:
        if not layer.is_dir():
            raise
