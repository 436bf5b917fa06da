"""What Muster adds to a vLLM worker: `--worker-extension-cls muster.engine.vllm_worker.MusterWorker`.

    muster_stage ─► a thread: fetch, map, pack beside the running model, read back, digest     while serving
    muster_staged ─► how far that is                                                           asked again and again
    muster_commit ─► the packed layers change places with those that served                    in the pause
    muster_score ─► log-probabilities by what serves now

Law: a call never raises for what the world can do: vLLM may end a worker whose call raised. It answers a dictionary,
and what went wrong under `error`. A call returns at once, or it holds up every running request: the thread works.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import atexit
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from muster import clock
from muster.engine import wire
from muster.engine.port import Staged
from muster.engine.vllm_score import score
from muster.engine.vllm_weights import HeldWeights, Ready
from muster.errors import MusterError, PublicationError
from muster.model.digest import digest
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

    def muster_commit(self, number: str) -> Answer:
        return _answer(lambda: self._muster.commit(int(number)))

    def muster_score(self, body: str) -> Answer:
        """body: JSON of `wire.ScoreBody`."""
        asked = wire.ScoreBody.model_validate_json(body)
        return _answer(lambda: {"logprobs": score(self.model_runner, asked.token_ids, asked.temperature)})

    def _muster_state(self, label: str) -> _Publications:
        if not hasattr(self, "_muster"):
            self._muster = _Publications(self, label)
        return self._muster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    ready: Ready
    digest: str  # of `ready`
    tensors: dict[str, Tensor]
    cost: Staged


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
        self._staging: tuple[Version, Future[_Prepared]] | None = None

    def begin(self) -> Answer:
        expected = {
            name: tensor for path in sorted(self._folder.glob("*.safetensors")) for name, tensor in _tensors(path)
        }
        expected = {name: tensor.to(self._dtype) for name, tensor in expected.items() if name in self._held.names}
        return {"digest": digest(self._held.read(None, expected))}

    def stage(self, update: wire.UpdateInfo) -> Answer:
        """A version that is staged, or on its way, is not fetched again; one that failed is."""
        version = update.publication().version
        if self._staging is None or self._staging[0] != version or _failed(self._staging[1]):
            self._staging = (version, self._thread.submit(self._prepare, update))
        return {}

    def staged(self, number: int) -> Answer:
        if self._staging is None or self._staging[0].number != number:
            return {"error": f"version {number} is not staged"}
        future = self._staging[1]
        if not future.done():
            return {"done": False}
        return {"done": True, **wire.staged_to_json(future.result().cost)}

    def commit(self, number: int) -> Answer:
        if self._staging is None or self._staging[0].number != number or not self._staging[1].done():
            return {"error": f"version {number} is not staged"}
        prepared = self._staging[1].result()
        self._held.put(prepared.ready)
        self._staging = None
        if self._held.swaps:
            return {"digest": prepared.digest}
        return {"digest": digest(self._held.read(None, prepared.tensors))}

    def _prepare(self, update: wire.UpdateInfo) -> _Prepared:
        publication = update.publication()
        received = self._receiver.receive(publication)
        started = clock.now()
        with torch.no_grad():
            tensors = {name: tensor.to(self._dtype) for name, tensor in _tensors(received.path)}
            ready = self._held.prepare(tensors)
            held = digest(self._held.read(ready, tensors))
        if held != publication.version.digest:
            raise PublicationError(
                f"version {publication.version.number}: vllm would hold {held[:12]}, "
                f"published was {publication.version.digest[:12]}"
            )
        decode_s = received.decode_s + clock.now() - started
        cost = Staged(transfer_s=received.transfer_s, decode_s=decode_s, size_bytes=received.size_bytes)
        return _Prepared(ready=ready, digest=held, tensors=tensors, cost=cost)


def _tensors(path: Path) -> list[tuple[str, Tensor]]:
    """Mapped, not read. Raises `PublicationError`."""
    try:
        with safe_open(path, framework="pt") as file:
            return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise PublicationError(f"{path}: {error}") from None


def _failed(future: Future[Any]) -> bool:
    return future.done() and future.exception() is not None


def _answer(call: Any) -> Answer:
    try:
        return call()
    except (MusterError, OSError, MemoryError, RuntimeError) as error:
        return {"error": f"{error}"}
