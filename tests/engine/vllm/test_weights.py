"""vLLM's layers under the checkpoint's names, on doubles of its layers: packed on the CPU, plain on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from muster.engine.vllm.weights import HeldWeights
from muster.errors import ModelError
from muster.model.digest import digest

pytestmark = pytest.mark.model

WIDTH, VOCABULARY, PADDED = 6, 5, 8
SIZES = {"q_proj": 4, "k_proj": 2, "v_proj": 2}


class Packing:
    """vLLM's method for linear layers on the CPU: an opaque product in place of the matrix."""

    def __init__(self, *, keeps_weight: bool) -> None:
        self._keeps_weight = keeps_weight

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        matrix = layer.weight.detach().clone()
        layer.cpu_linear = lambda x, weight, bias: x @ matrix.t()
        if not self._keeps_weight:
            layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)


class Plain:
    def process_weights_after_loading(self, layer: nn.Module) -> None:
        pass


class Linear(nn.Module):
    def __init__(self, sizes: list[int], method: Packing | Plain, *, bias: bool) -> None:
        super().__init__()
        self.output_partition_sizes = sizes
        self.weight = nn.Parameter(torch.zeros(sum(sizes), WIDTH), requires_grad=False)
        if bias:
            self.bias = nn.Parameter(torch.zeros(sum(sizes)), requires_grad=False)
        self.quant_method = method
        method.process_weights_after_loading(self)


class Embedding(nn.Module):
    def __init__(self, method: Packing | Plain) -> None:
        super().__init__()
        self.org_vocab_size, self.num_embeddings_padded = VOCABULARY, PADDED
        self.weight = nn.Parameter(torch.zeros(PADDED, WIDTH), requires_grad=False)
        self.quant_method = method
        method.process_weights_after_loading(self)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)


class Model(nn.Module):
    """A tied head, as vLLM ties it: another layer with the same parameter."""

    packed_modules_mapping = {"qkv_proj": list(SIZES)}  # noqa: RUF012 (vLLM's own shape)

    def __init__(self, *, cpu: bool) -> None:
        super().__init__()
        self.embed = Embedding(Packing(keeps_weight=True) if cpu else Plain())
        self.qkv_proj = Linear(list(SIZES.values()), Packing(keeps_weight=False) if cpu else Plain(), bias=True)
        self.norm = Norm()
        self.lm_head = Embedding(Plain())
        self.lm_head.weight = self.embed.weight
        if cpu:
            Packing(keeps_weight=True).process_weights_after_loading(self.lm_head)


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {"embed.weight": torch.randn(VOCABULARY, WIDTH, generator=generator)}
    for name, rows in SIZES.items():
        made[f"{name}.weight"] = torch.randn(rows, WIDTH, generator=generator)
        made[f"{name}.bias"] = torch.randn(rows, generator=generator)
    made["norm.weight"] = torch.randn(WIDTH, generator=generator)
    return made


@pytest.fixture(params=["cpu", "gpu"])
def model(request: pytest.FixtureRequest) -> Model:
    return Model(cpu=request.param == "cpu")


def loaded(model: Model, values: Mapping[str, Tensor]) -> HeldWeights:
    held = HeldWeights(model)
    held.put(held.prepare(values))
    return held


def test_what_was_put_is_read_back_bit_by_bit(model: Model) -> None:
    values = tensors(1)
    held = loaded(model, values)
    assert digest(held.read(None, values)) == digest(values)


def test_what_is_prepared_is_known_before_it_serves_and_changes_nothing(model: Model) -> None:
    old, new = tensors(1), tensors(2)
    held = loaded(model, old)
    ready = held.prepare(new)
    assert digest(held.read(ready, new)) == digest(new)
    assert digest(held.read(None, old)) == digest(old)


def test_the_tied_head_multiplies_the_new_embedding(model: Model) -> None:
    values = tensors(3)
    loaded(model, values)
    multiply = getattr(model.lm_head, "cpu_linear", lambda x, weight, bias: x @ weight.t())
    product = multiply(torch.eye(WIDTH), model.lm_head.weight, None).t()
    assert torch.equal(product[:VOCABULARY], values["embed.weight"])
    assert not product[VOCABULARY:].any()


def test_a_head_left_behind_shows_in_the_digest() -> None:
    model, values = Model(cpu=True), tensors(3)
    held = loaded(model, tensors(1))
    stale = model.lm_head.cpu_linear
    held.put(held.prepare(values))
    model.lm_head.cpu_linear = stale
    assert digest(held.read(None, values)) != digest(values)


def test_tensors_in_each_others_rows_show_in_the_digest(model: Model) -> None:
    values = tensors(4)
    swapped = {**values, "k_proj.weight": values["v_proj.weight"], "v_proj.weight": values["k_proj.weight"]}
    held = loaded(model, swapped)
    assert digest(held.read(None, values)) != digest(values)


def test_negative_zeros_survive_being_read_back(model: Model) -> None:
    values = tensors(5)
    values["q_proj.weight"][0, 0] = -0.0
    values["q_proj.weight"][1, 1] = 0.0
    held = loaded(model, values)
    assert digest(held.read(None, values)) == digest(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"more.weight": torch.zeros(2, 2)}, "more.weight is not known"),
        ({"q_proj.weight": torch.zeros(3, WIDTH)}, "q_proj.weight has 3 rows, not 4"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(model: Model, change: dict[str, Tensor], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        HeldWeights(model).prepare({**tensors(1), **change})


def test_a_missing_tensor_is_refused_by_name(model: Model) -> None:
    values = tensors(1)
    del values["norm.weight"]
    with pytest.raises(ModelError, match=r"norm\.weight is missing"):
        HeldWeights(model).prepare(values)
