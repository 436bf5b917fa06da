"""Extension of a vLLM worker: `--worker-extension-cls muster.engine.vllm.worker.MusterWorker`.

    muster_stage ─► a thread: fetch, decode, map                                               while serving
    muster_staged ─► between two steps, a layer or a few: pack, read back, digest              asked again and again
    muster_commit ─► the packed layers change places with those that served                    in the pause
    muster_score ─► log-probabilities by what serves now

Law: a call never raises for what the world can do: vLLM may end a worker whose call raised. It answers a dictionary,
and what went wrong under `error`. A call holds up every running request, so it works for milliseconds. The thread
never calls vLLM's kernels: on the CPU they share one scratch memory, and two at once give wrong numbers, in silence.
"""
# vllm is not installed where types are checked
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from muster import clock
from muster.engine.http import wire
from muster.engine.port import Staged
from muster.engine.vllm.score import score
from muster.engine.vllm.weights import HeldWeights, Ready
from muster.errors import MusterError, PublicationError
from muster.model.digest import digest, digesting
from muster.transport.receive import Receiver
from muster.types import Version

Answer = dict[str, Any]


class MusterWorker:
    """Mixed into vLLM's worker class by vLLM. All state is in one attribute, made by the first call."""

    def muster_begin(self, label: str) -> Answer:
        """Call it first, once for each worker. Answers the digest of what was loaded at the start."""
        return _answer(lambda: self._muster_state(label).begin())

    def muster_stage(self, update: str) -> Answer:
        """update: JSON of `wire.UpdateInfo`."""
        return _answer(lambda: self._muster.stage(wire.UpdateInfo.model_validate_json(update)))

    def muster_staged(self, number: str) -> Answer:
        return _answer(lambda: self._muster.staged(int(number)))

    def muster_commit(self, version: str) -> Answer:
        """version: JSON of a `Version`."""
        return _answer(lambda: self._muster.commit(Version(**json.loads(version))))

    def muster_score(self, body: str) -> Answer:
        """body: JSON of `wire.ScoreBody`."""
        asked = wire.ScoreBody.model_validate_json(body)
        return _answer(lambda: {"logprobs": score(self.model_runner, asked.token_ids, asked.temperature)})

    def _muster_state(self, label: str) -> _Publications:
        if not hasattr(self, "_muster"):
            self._muster = _Publications(self, label)
        return self._muster


_SLICE_S = 0.02
"""Of packing and reading back between two steps; at least one layer."""


class _Staging:
    """One version on its way: fetched by the thread, then made ready in slices."""

    def __init__(self, version: Version, fetched: Future[tuple[dict[str, Tensor], Staged]]) -> None:
        self.version, self.fetched = version, fetched
        self.ready = Ready()
        self.digest = ""  # of `ready`, once it is
        self._decode_s = 0.0
        self._work: Iterator[None] | None = None
        self._refused = False

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.fetched.result()[0]

    @property
    def cost(self) -> Staged:
        cost = self.fetched.result()[1]
        return replace(cost, decode_s=cost.decode_s + self._decode_s)

    @property
    def failed(self) -> bool:
        """Then it is fetched anew when it is asked for again."""
        return self._refused or (self.fetched.done() and self.fetched.exception() is not None)

    def advance(self, held: HeldWeights) -> bool:
        """Work for a slice; whether it is ready. Raises `PublicationError` when it is not what was published."""
        if self.digest:
            return True
        if self._work is None:
            self._work = self._make(held)
        began = clock.now()
        try:
            with torch.no_grad():
                ended = not any(clock.now() - began > _SLICE_S for _ in self._work)
        except BaseException:
            self._refused = True
            raise
        self._decode_s += clock.now() - began
        if ended and self.digest != self.version.digest:
            would, self.digest, self._refused = self.digest, "", True
            raise PublicationError(
                f"version {self.version.number}: vllm would hold {would[:12]}, published was {self.version.digest[:12]}"
            )
        return ended

    def _make(self, held: HeldWeights) -> Iterator[None]:
        tensors, total = self.tensors, hashlib.sha256()
        yield from held.preparing(tensors, self.ready)
        yield from digesting(held.read(self.ready, tensors), total)
        self.digest = total.hexdigest()


class _Publications:
    """Versions on their way into this worker: at most one is ready, beside the one that serves."""

    def __init__(self, worker: Any, label: str) -> None:
        parallel = worker.vllm_config.parallel_config
        if parallel.world_size > 1:
            raise PublicationError("vllm: only replicas of one device can prove what they hold; use more replicas")
        model = worker.vllm_config.model_config
        self._folder = Path(model.model)
        self._dtype: torch.dtype = model.dtype
        self._held = HeldWeights(worker.model_runner.get_model())
        self._receiver = Receiver(label=label, base=self._folder)
        atexit.register(self._receiver.close)
        self._thread = ThreadPoolExecutor(1, "muster-stage")
        self._staging: _Staging | None = None

    def begin(self) -> Answer:
        expected = {
            name: tensor for path in sorted(self._folder.glob("*.safetensors")) for name, tensor in _tensors(path)
        }
        expected = {name: tensor.to(self._dtype) for name, tensor in expected.items() if name in self._held.names}
        return {"digest": digest(self._held.read(None, expected))}

    def stage(self, update: wire.UpdateInfo) -> Answer:
        """A version that is staged, or on its way, is not fetched again; one that failed is."""
        version = update.publication().version
        if self._staging is None or self._staging.version != version or self._staging.failed:
            self._staging = _Staging(version, self._thread.submit(self._fetch, update))
        return {}

    def staged(self, number: int) -> Answer:
        """`busy`: ask again at once, there is work to do."""
        staging = self._staging
        if staging is None or staging.version.number != number:
            return {"error": f"version {number} is not staged"}
        if not staging.fetched.done():
            return {"done": False, "busy": False}
        if not staging.advance(self._held):
            return {"done": False, "busy": True}
        return {"done": True, **wire.staged_to_json(staging.cost)}

    def commit(self, version: Version) -> Answer:
        staging = self._staging
        if staging is None or staging.version != version or not staging.digest:
            return {"error": f"version {version.number} is not staged"}
        self._held.put(staging.ready)
        self._staging = None
        if self._held.swaps:
            return {"digest": staging.digest}
        return {"digest": digest(self._held.read(None, staging.tensors))}

    def _fetch(self, update: wire.UpdateInfo) -> tuple[dict[str, Tensor], Staged]:
        received = self._receiver.receive(update.publication())
        tensors = {name: tensor.to(self._dtype) for name, tensor in _tensors(received.path)}
        cost = Staged(transfer_s=received.transfer_s, decode_s=received.decode_s, size_bytes=received.size_bytes)
        return tensors, cost


def _tensors(path: Path) -> list[tuple[str, Tensor]]:
    """Mapped, not read. Raises `PublicationError`."""
    try:
        with safe_open(path, framework="pt") as file:
            return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise PublicationError(f"{path}: {error}") from None


def _answer(call: Any) -> Answer:
    try:
        return call()
    except (MusterError, OSError, MemoryError, RuntimeError) as error:
        return {"error": f"{error}"}
