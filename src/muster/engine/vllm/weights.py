"""vLLM's parameters under the checkpoint's names: read back as they are multiplied, made ready, and put in place.

    checkpoint names ─stack─► shadow layer ─vLLM's own packing─► ready ─┬─ read back ─► names ─► digest   while serving
                                                                        └─ put ─► the layer              in the pause

Law: what is digested is what will be multiplied. On the CPU vLLM packs a linear layer into an opaque handle and drops
the matrix; the handle itself is asked, with one-hot rows, so that a packing gone wrong, a stale tied head or a tensor
in the wrong rows cannot keep the right label. On the GPU the parameters are plain; they are copied into, and read
back after that.
"""
# vllm is not installed where types are checked
# pyright: reportMissingImports=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from muster.errors import ModelError

_PROBE_ROWS = 1024
"""One-hot rows multiplied at once when a packed matrix is read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows [start, stop) of a parameter are the checkpoint's tensor `name`."""

    name: str
    layer: str
    kind: str  # weight | bias
    start: int
    stop: int


@dataclass(slots=True)
class Ready:
    """A version's layers by path, packed beside the ones that serve."""

    layers: dict[str, Any] = field(default_factory=dict[str, Any])


class HeldWeights:
    """The weights of one vLLM model, whole on this worker.

    Example:
        held = HeldWeights(model)
        ready = held.prepare(tensors)                       # beside the running engine
        digest(held.read(ready, tensors))                   # of exactly what will serve
        held.put(ready)                                     # between two steps
    """

    def __init__(self, model: nn.Module) -> None:
        """Raises `ModelError` for a model whose parameters have no checkpoint name of their own."""
        self._model = model
        self._layers: dict[str, Any] = dict(model.named_modules())
        self._tied = _tied_head(self._layers)
        packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
        self._parts = {part.name: part for part in _parts(model, packed)}

    @property
    def swaps(self) -> bool:
        """Whether `put` only exchanges objects, so that what was read before it is what is held after it."""
        return all(parameter.device.type == "cpu" for parameter in self._model.parameters())

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoint's tensors that are needed; a tied head has none."""
        return tuple(self._parts)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Ready:
        """Every layer again, with `tensors` in it. Raises `ModelError` when one is missing, unknown or misshapen."""
        ready = Ready()
        for _ in self.preparing(tensors, ready):
            pass
        return ready

    def preparing(self, tensors: Mapping[str, Tensor], ready: Ready) -> Iterator[None]:
        """As `prepare`, into `ready`, one layer at a time."""
        for name in sorted(self._parts.keys() ^ tensors.keys()):
            raise ModelError(f"tensor {name} is {'missing' if name in self._parts else 'not known'}")
        for path in {part.layer: None for part in self._parts.values()}:
            layer = self._layers[path]
            shadow = nn.Module()
            for kind in ("weight", "bias"):
                if (value := self._stacked(path, kind, tensors)) is not None:
                    shadow.register_parameter(kind, nn.Parameter(value, requires_grad=False))
            ready.layers[path] = _packed(layer, shadow)
            yield

    def put(self, ready: Ready) -> None:
        """The prepared layers serve from now on. Nothing is computed on the CPU; on the GPU bytes are copied."""
        for path, shadow in ready.layers.items():
            layer = self._layers[path]
            for kind, value in shadow.named_parameters():
                current = getattr(layer, kind)
                if current.device.type == "cpu":
                    current.data = value.data
                else:  # in place: captured graphs know the address
                    current.data.copy_(value.data)
            if hasattr(shadow, "cpu_linear"):
                layer.cpu_linear = shadow.cpu_linear
        if self._tied is not None and hasattr(self._layers[self._tied[1]], "cpu_linear"):
            head, embedding = (self._layers[path] for path in self._tied)
            head.cpu_linear = embedding.cpu_linear

    def read(self, ready: Ready | None, expected: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights that are held, or that `ready` will hold, under the checkpoint's names, read on demand.

        expected: tells the sign of a zero, the one thing that a product does not.
        """
        layers = self._layers if ready is None else {**self._layers, **ready.layers}
        head = None if self._tied is None else self._tied_difference(layers, expected, ready is not None)
        return _Held(self._parts, layers, expected, head)

    def _tied_difference(
        self, layers: Mapping[str, Any], expected: Mapping[str, Tensor], prepared: bool
    ) -> Tensor | None:
        """The head's own rows, when they are not the embedding's."""
        assert self._tied is not None
        head, embedding = self._tied
        part = next(p for p in self._parts.values() if p.layer == embedding)
        rows = layers[embedding].weight[: part.stop]
        multiplied = _rows(layers[embedding if prepared else head], 0, part.stop, rows)
        return None if torch.equal(multiplied, rows) else multiplied

    def _stacked(self, path: str, kind: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The layer's parameter made of its tensors, zeros where it is padded."""
        parts = [p for p in self._parts.values() if p.layer == path and p.kind == kind]
        if not parts:
            return None
        for part in parts:
            if len(tensors[part.name]) != part.stop - part.start:
                raise ModelError(f"tensor {part.name} has {len(tensors[part.name])} rows, not {part.stop - part.start}")
        stacked = torch.cat([tensors[part.name] for part in parts])
        padding = getattr(self._layers[path], "num_embeddings_padded", len(stacked)) - len(stacked)
        return torch.cat([stacked, stacked.new_zeros(padding, *stacked.shape[1:])]) if padding else stacked


class _Held(Mapping[str, Tensor]):
    """Reads a tensor when it is asked for: a whole second copy is never made."""

    def __init__(
        self,
        parts: Mapping[str, _Part],
        layers: Mapping[str, Any],
        expected: Mapping[str, Tensor],
        head: Tensor | None,
    ) -> None:
        self._parts, self._layers, self._expected, self._head = parts, layers, expected, head

    def __iter__(self) -> Iterator[str]:
        yield from self._parts
        if self._head is not None:
            yield "lm_head.weight"

    def __len__(self) -> int:
        return len(self._parts) + (self._head is not None)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._parts:
            assert name == "lm_head.weight"
            assert self._head is not None
            return self._head
        part = self._parts[name]
        layer = self._layers[part.layer]
        if part.kind == "weight":
            return _rows(layer, part.start, part.stop, self._expected[name]).cpu()
        return layer.bias[part.start : part.stop].to(self._expected[name].dtype).cpu()


def _parts(model: nn.Module, packed: Mapping[str, list[str]]) -> Iterator[_Part]:
    """Rows of the parameter that hold each tensor of the checkpoint. A tied head is listed under its embedding."""
    for parameter, _ in model.named_parameters():
        path, kind = parameter.rsplit(".", 1)
        layer: Any = model.get_submodule(path)
        leaf = path.rsplit(".", 1)[-1]
        if kind not in ("weight", "bias"):
            raise ModelError(f"parameter {parameter}: only weights and biases can be published, unquantised")
        if leaf in packed:
            start = 0
            for name, size in zip(packed[leaf], layer.output_partition_sizes, strict=True):
                full = path.removesuffix(leaf) + f"{name}.{kind}"
                yield _Part(name=full, layer=path, kind=kind, start=start, stop=start + size)
                start += size
        else:
            yield _Part(name=parameter, layer=path, kind=kind, start=0, stop=_height(layer, kind))


def _height(layer: Any, kind: str) -> int:
    """Rows without padding, also where the matrix itself is gone."""
    if hasattr(layer, "org_vocab_size"):
        return layer.org_vocab_size
    if kind == "weight" and hasattr(layer, "output_partition_sizes"):
        return sum(layer.output_partition_sizes)
    return len(getattr(layer, kind))


def _tied_head(layers: Mapping[str, Any]) -> tuple[str, str] | None:
    """(head, embedding), when they are one parameter."""
    head = layers.get("lm_head")
    for path, layer in layers.items():
        if path != "lm_head" and hasattr(layer, "org_vocab_size") and head is not None:
            return ("lm_head", path) if head is layer or head.weight is layer.weight else None
    return None


def _packed(layer: Any, shadow: nn.Module) -> nn.Module:
    """As vLLM does after loading: packed for the CPU, as it is for the GPU and for norms."""
    method = getattr(layer, "quant_method", None)
    if method is not None:
        method.process_weights_after_loading(shadow)
    return shadow


def _rows(layer: Any, start: int, stop: int, expected: Tensor) -> Tensor:
    """Rows of the matrix that is multiplied. `expected` tells the sign of zeros."""
    multiply: Callable[[Tensor, Tensor, None], Tensor] | None = getattr(layer, "cpu_linear", None)
    if multiply is None:
        return layer.weight[start:stop]
    width = expected.shape[1]
    columns: list[Tensor] = []
    for first in range(0, width, _PROBE_ROWS):
        count = min(_PROBE_ROWS, width - first)
        probe = torch.zeros(count, width, dtype=expected.dtype)
        probe[torch.arange(count), torch.arange(first, first + count)] = 1
        columns.append(multiply(probe, layer.weight, None)[:, start:stop])
    rows = torch.cat(columns).t().contiguous()
    return torch.where((rows == 0) & (expected == 0), expected, rows)
