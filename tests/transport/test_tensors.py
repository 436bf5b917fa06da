from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.publications import same, weights
from muster.errors import PublicationError
from muster.model import weights as model_weights
from muster.transport.tensors import describe, digest, encode_header, map_arrays, read_header
from muster.types import Version


def written(path, arrays, version=Version(number=3, digest="d")):  # noqa: B008
    path.write_bytes(encode_header(arrays, describe(version)) + b"".join(a.tobytes() for a in arrays.values()))
    return path


def test_others_read_what_we_write(tmp_path):
    arrays = weights()
    state = load_file(written(tmp_path / "f", arrays))
    assert all((state[name].view(torch.uint16).numpy() == arrays[name]).all() for name in arrays)
    assert state["norm"].dtype == torch.bfloat16


def test_we_read_what_others_write(tmp_path):
    state = {"w": torch.randn(3, 5), "v": torch.randn(2).to(torch.bfloat16)}
    save_file(state, tmp_path / "f")
    header = read_header(tmp_path / "f")
    arrays = map_arrays(tmp_path / "f", header)
    assert np.array_equal(arrays["w"], state["w"].numpy())
    assert np.array_equal(arrays["v"], state["v"].view(torch.uint16).numpy())
    assert header.version is None


def test_the_header_says_which_version_and_how_long(tmp_path):
    header = read_header(written(tmp_path / "f", weights()))
    assert header.version == Version(number=3, digest="d")
    assert header.size_bytes == (tmp_path / "f").stat().st_size and same(tmp_path / "f", weights())


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_the_digest_is_the_one_that_trainer_and_engine_compute(dtype, torch_dtype):
    state = {
        "b": torch.randn(3, 5).to(torch_dtype),
        "a": torch.randn(7).to(torch_dtype),
        "c": torch.ones(()).to(torch_dtype),
    }
    arrays = {n: (t.view(torch.uint16) if dtype == "bfloat16" else t).numpy() for n, t in state.items()}
    assert digest(arrays, dtype) == model_weights.digest(state)


@pytest.mark.parametrize("size", [0, 3, 8, 40, -1, -500])
def test_a_file_cut_anywhere_is_an_error_that_names_it(tmp_path, size):
    path = written(tmp_path / "cut", weights())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(PublicationError, match="cut short or corrupt"):
        read_header(path)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 3]}},
        {"w": {"dtype": "BF16", "shape": [-1], "data_offsets": [0, -2]}},
        {"w": {"dtype": "Q3", "shape": [2], "data_offsets": [0, 4]}},
        {"w": {"dtype": "BF16", "shape": "x", "data_offsets": [0, 4]}},
        {"w": {"dtype": "BF16", "shape": [2]}},
        {"__metadata__": 3},
        {"w": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}},
        {
            "w": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "v": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
        },
    ],
)
def test_a_header_that_makes_no_sense_is_an_error_that_names_the_file(tmp_path, entries):
    text = json.dumps(entries).encode()
    (tmp_path / "odd").write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(PublicationError, match="odd"):
        read_header(tmp_path / "odd")
