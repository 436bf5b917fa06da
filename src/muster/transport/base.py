"""The weights that an engine started from, as an adapter is merged with them.

Law: they are rounded to the serving dtype before anything is added, as the trainer rounds them. Read from the model
folder each time, tensor by tensor: an engine keeps no second copy for this.

    model file or folder ─ mapped ─► in the serving dtype ─ merge with A, B ─► whole file
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster.errors import PublicationError
from muster.transport.adapter import A, B, merge_one, narrow, widen
from muster.transport.files import whole_file
from muster.transport.tensors import ELEMENTS, Array, describe, digest, encode_header, map_arrays, read_header
from muster.types import Version


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """Example: `BaseWeights(model_folder).merged_into(path, low_rank, scale=2.0, version=v3, dtype="bfloat16")`"""

    path: Path | None

    def merged_into(
        self, target: Path, low_rank: Mapping[str, Array], *, scale: float, version: Version, dtype: str
    ) -> None:
        """Write the merged weights as `version`, sorted by name. Raises `PublicationError`."""
        base = self._arrays()
        known = {name.removesuffix(A).removesuffix(B) for name in low_rank}
        for name in sorted(known - base.keys()):
            raise PublicationError(f"{self.path}: the adapter changes {name}, which the model does not have")
        names = sorted(base)
        shapes = {name: np.empty(base[name].shape, ELEMENTS[dtype]) for name in names}  # never touched: takes no memory
        with whole_file(target) as file:
            file.write(encode_header(shapes, describe(version)))
            for name in names:
                file.write(np.ascontiguousarray(_merged(base, low_rank, name, scale, dtype)).data)

    def digest(self, dtype: str) -> str:
        """Of the model's weights in the serving dtype, as trainer and engine compute it. Raises `PublicationError`."""
        return digest({name: _rounded(array, dtype) for name, array in self._arrays().items()}, dtype)

    def _arrays(self) -> dict[str, Array]:
        """Raises `PublicationError`."""
        if self.path is None:
            raise PublicationError("an adapter is merged with the engine's first weights; this engine names none")
        files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
        if not files:
            raise PublicationError(f"{self.path}: no .safetensors file to merge the adapter with")
        arrays: dict[str, Array] = {}
        for file in files:
            arrays |= map_arrays(file, read_header(file))
        if self._tied():
            arrays.pop("lm_head.weight", None)
        return arrays

    def _tied(self) -> bool:
        assert self.path is not None
        config = (self.path if self.path.is_dir() else self.path.parent) / "config.json"
        return config.is_file() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))


def _merged(base: Mapping[str, Array], low_rank: Mapping[str, Array], name: str, scale: float, dtype: str) -> Array:
    weight = _rounded(base[name], dtype)
    if name + A not in low_rank:
        return weight
    a_RI, b_OR = low_rank[name + A], low_rank.get(name + B)
    if b_OR is None or {a_RI.dtype, b_OR.dtype} != {np.dtype(np.float32)} or a_RI.ndim != 2:
        raise PublicationError(f"corrupt adapter: {name} has no two matrices in float32")
    if b_OR.shape != (weight.shape[0], a_RI.shape[0]) or weight.shape[1:] != a_RI.shape[1:]:
        raise PublicationError(f"{name}: an adapter of {b_OR.shape} x {a_RI.shape} does not fit {weight.shape}")
    return merge_one(weight, a_RI, b_OR, scale=scale, dtype=dtype)


def _rounded(array: Array, dtype: str) -> Array:
    """A tensor of a model file in the serving dtype. uint16 is bfloat16."""
    if array.dtype == ELEMENTS[dtype]:
        return array
    wide = widen(array, "bfloat16") if array.dtype == np.uint16 else array.astype(np.float32, copy=False)
    return narrow(wide, dtype)
