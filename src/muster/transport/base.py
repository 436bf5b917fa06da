"""The weights that an engine started from: what lies on its machine before anything was published.

Law: they count in the serving dtype, rounded as the trainer rounds them. Read from the model folder each time, tensor
by tensor: an engine keeps no second copy for this.

    model file or folder ─ mapped ─► each tensor in the serving dtype ─┬─► digest: a version that need not be fetched
                                                                       └─ merge with A, B, if any ─► whole file
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from muster.errors import PublicationError
from muster.transport.adapter import A, B, merge_one, narrow, widen
from muster.transport.files import whole_file
from muster.transport.tensors import ELEMENTS, Array, describe, digest, encode_header, map_arrays, read_header
from muster.types import Version


class BaseWeights:
    """Base weights of a model folder, and adapters merged into them.

    Example: `BaseWeights(model_folder).merged_into(path, low_rank, scale=2.0, version=v3, dtype="bfloat16")`
    """

    def __init__(self, path: Path | None) -> None:
        """path: of the model file or folder; None: the engine names none."""
        self.path = path
        self._digests: dict[str, str] = {}  # by serving dtype

    def merged_into(
        self, target: Path, low_rank: Mapping[str, Array], *, scale: float, version: Version, dtype: str
    ) -> None:
        """Write the merged weights as `version`, sorted by name. Raises `PublicationError`; `OSError` of writing."""
        base = self._arrays()
        known = {name.removesuffix(A).removesuffix(B) for name in low_rank}
        for name in sorted(known - base.keys()):
            raise PublicationError(f"{self.path}: the adapter changes {name}, which the model does not have")
        served = _Served(base, dtype)
        names = sorted(base)
        one = np.empty((), ELEMENTS[dtype])
        shapes = {name: np.broadcast_to(one, base[name].shape) for name in names}
        with whole_file(target) as file:
            file.write(encode_header(shapes, describe(version)))
            for name in names:
                file.write(np.ascontiguousarray(_merged(served[name], low_rank, name, scale, dtype)).data)

    def written_to(self, target: Path, *, version: Version, dtype: str) -> None:
        """Write them as they are, as `version`. Raises as `merged_into`."""
        self.merged_into(target, {}, scale=1.0, version=version, dtype=dtype)

    def digest(self, dtype: str) -> str:
        """Of the model's weights in the serving dtype, as trainer and engine compute it. Raises `PublicationError`.

        They are read once; `forget` when they may have changed since.
        """
        if dtype not in self._digests:
            self._digests[dtype] = digest(_Served(self._arrays(), dtype), dtype)
        return self._digests[dtype]

    def forget(self) -> None:
        self._digests.clear()

    def have(self, wanted: str, dtype: str) -> bool:
        """Whether they have the digest `wanted`. What cannot be read has none."""
        try:
            return self.digest(dtype) == wanted
        except PublicationError:
            return False

    def size_bytes(self, dtype: str) -> int:
        """Of all of them in the serving dtype. Raises `PublicationError`."""
        return sum(array.size for array in self._arrays().values()) * ELEMENTS[dtype].itemsize

    def _arrays(self) -> dict[str, Array]:
        """Raises `PublicationError`."""
        if self.path is None:
            raise PublicationError("an adapter is merged with the engine's first weights; this engine names none")
        try:
            files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
            arrays: dict[str, Array] = {}
            for file in files:
                arrays |= map_arrays(file, read_header(file))
            if self._tied():
                arrays.pop("lm_head.weight", None)
        except (OSError, ValueError) as error:  # ValueError: of a config.json that is no JSON
            raise PublicationError(
                f"{self.path}: what the engine started from cannot be read any more ({error}); start it again"
            ) from error
        if not arrays:
            raise PublicationError(f"{self.path}: no .safetensors file with the engine's first weights")
        return arrays

    def _tied(self) -> bool:
        assert self.path is not None
        config = (self.path if self.path.is_dir() else self.path.parent) / "config.json"
        return config.is_file() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))


class _Served(Mapping[str, Array]):
    """Tensors of a model file in the serving dtype, each read and rounded when it is asked for."""

    def __init__(self, arrays: Mapping[str, Array], dtype: str) -> None:
        self._arrays, self._dtype = arrays, dtype

    def __getitem__(self, name: str) -> Array:
        array = self._arrays[name]
        if array.dtype == ELEMENTS[self._dtype]:
            return array
        wide = widen(array, "bfloat16") if array.dtype == np.uint16 else array.astype(np.float32, copy=False)
        return narrow(wide, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _merged(weight: Array, low_rank: Mapping[str, Array], name: str, scale: float, dtype: str) -> Array:
    a_RI, b_OR = low_rank.get(name + A), low_rank.get(name + B)
    if a_RI is None and b_OR is None:
        return weight
    if a_RI is None or b_OR is None or {a_RI.dtype, b_OR.dtype} != {np.dtype(np.float32)} or a_RI.ndim != 2:
        raise PublicationError(f"corrupt adapter: {name} has no two matrices in float32")
    if b_OR.shape != (weight.shape[0], a_RI.shape[0]) or weight.shape[1:] != a_RI.shape[1:]:
        raise PublicationError(f"{name}: an adapter of {b_OR.shape} x {a_RI.shape} does not fit {weight.shape}")
    return merge_one(weight, a_RI, b_OR, scale=scale, dtype=dtype)
