from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file

from app.publications import in_memory
from muster.errors import ModelError, PublicationError
from muster.model.weights import digest, load, parameter_shapes
from muster.publish.config import CheckpointConfig
from muster.publish.transports import exporter_for
from muster.trainer.adapter import fresh, peft_name
from muster.trainer.checkpoint import as_model
from muster.trainer.config import TARGETS, AdapterConfig, TrainerConfig
from muster.trainer.forward import hidden, logprobs, row_tensors
from muster.trainer.local import LocalTrainer
from muster.trainer.masters import Masters, adapted
from muster.trainer.packing import plan, sequences
from muster.trainer.weights import Compute
from muster.transport.adapter import Adapter, merge, merge_one
from muster.transport.receive import Receiver
from muster.types import Publication, Version
from trainer.played import T, on_policy, sampled_logprobs, tokens_of, weights
from trainer.tiny import TINY, random_batch, tiny_state, write_tiny

SMALL = AdapterConfig(rank=4, alpha=8)
CPU = torch.device("cpu")


class Caught:
    """An exporter that keeps what it is given."""

    def export(self, arrays, *, number, digest, dtype, adapter=None) -> Publication:
        self.arrays, self.adapter = arrays, adapter
        version = Version(number=number, digest=digest)
        return Publication(version=version, transport="memory", location="", size_bytes=0, dtype=dtype)


@pytest.fixture
def make(model):
    def build(adapter: AdapterConfig | None = SMALL, exporter=None, **settings) -> LocalTrainer:
        defaults = {"lr": 1e-2, "max_tokens_per_row": 64}
        config = TrainerConfig(**{**defaults, **settings}, adapter=adapter)
        return LocalTrainer(config, model=model, temperature=T, exporter=exporter or Caught())

    return build


# --- what is computed ---------------------------------------------------------------------------------


def moved(config, adapter: AdapterConfig, dtype: torch.dtype = torch.float32) -> Masters:
    """An adapter that has learned something: B is not zero."""
    rng = np.random.default_rng(5)
    low_rank = fresh(parameter_shapes(config), adapter, seed=1)
    arrays = {
        name: array + 0.1 * rng.standard_normal(array.shape).astype(np.float32) for name, array in low_rank.items()
    }
    return Masters(
        trained={name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()},
        frozen={name: tensor.to(dtype) for name, tensor in tiny_state(config).items()},
        adapter=Adapter(base="", scale=adapter.scale),
    )


def run_backward(masters: Masters, config, *, checkpointing: bool = False) -> list[torch.Tensor]:
    compute = Compute(config, masters, torch.float32)
    made = random_batch(2, groups=1)
    found = []
    for row in plan(sequences(made.groups, {m.id: 1.0 for g in made.groups for m in g.members}), 60):
        tensors = row_tensors(row, config, compute.embed)
        found.append(logprobs(compute, hidden(compute, tensors, checkpointing=checkpointing), tensors, T))
        found[-1].sum().backward()
        compute.flush()
    return found


@pytest.mark.parametrize(
    ("config", "checkpointing"),
    [
        (TINY, False),
        (TINY, True),
        (replace(TINY, tied_embeddings=False), False),
        (replace(TINY, qkv_bias=True, model_type="qwen2"), False),
    ],
    ids=["tied", "checkpointing", "untied", "biased"],
)
@given(targets=st.lists(st.sampled_from(TARGETS), min_size=1, unique=True))
@settings(max_examples=5, deadline=None)
def test_forward_and_gradient_are_those_of_the_merged_model(config, checkpointing, targets):
    """With W' = W + s B A, the chain rule gives dB = s dW' A' and dA = s B' dW'."""
    masters = moved(config, AdapterConfig(rank=3, alpha=6, targets=tuple(targets)))
    merged = {name: masters.value(name).clone().requires_grad_() for name in masters.frozen}
    expected = run_backward(Masters(trained=merged), config)
    found = run_backward(masters, config, checkpointing=checkpointing)
    torch.testing.assert_close(found, expected)
    for name in masters.frozen:
        pair = masters.pair(name)
        assert (pair is not None) == (name.split(".")[-2] in targets and name.endswith("weight"))
        if pair is not None:
            dense = merged[name].grad
            torch.testing.assert_close(pair.b_OR.grad, 2.0 * dense @ pair.a_RI.detach().t(), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(pair.a_RI.grad, 2.0 * pair.b_OR.detach().t() @ dense, rtol=1e-3, atol=1e-4)


def test_the_first_policy_is_the_bases_own(make):
    tokens = tokens_of(random_batch(0))
    for one, two in zip(make().score(tokens, temperature=T), make(None).score(tokens, temperature=T), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_choice_of_targets_does_not_change_what_a_target_begins_with():
    shapes = parameter_shapes(TINY)
    every, few = (fresh(shapes, AdapterConfig(targets=targets), seed=3) for targets in (TARGETS, ("v_proj", "up_proj")))
    assert set(few) < set(every)
    for name, array in few.items():
        np.testing.assert_array_equal(array, every[name])
    assert len(set(map(bytes, (a for n, a in every.items() if n.endswith("q_proj.weight.lora_A"))))) == TINY.layers


# --- what a step does ---------------------------------------------------------------------------------


def test_a_step_moves_low_rank_matrices_alone(make, model):
    trainer = make(AdapterConfig(rank=2, targets=("q_proj", "v_proj", "down_proj")))
    masters = trainer.learner.masters
    trainer.step(random_batch(0))
    trainer.step(random_batch(1))
    base = load(model, torch.bfloat16)[1]
    assert digest(masters.frozen) == digest(base) == masters.adapter.base
    assert not any(tensor.requires_grad for tensor in masters.frozen.values())
    trained = [p for group in trainer.learner.optimizer.param_groups for p in group["params"]]
    assert len(trained) == len(masters.trained) == TINY.layers * 3 * 2
    assert all(master.dtype == torch.float32 and bool((master != 0).any()) for master in masters.trained.values())
    served = trainer.learner.compute.weights()
    unlike = {name.split(".")[-2] for name in base if not torch.equal(base[name], served[name])}
    assert unlike == {"q_proj", "v_proj", "down_proj"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_raises_the_probability_of_what_was_rewarded(make, dtype):
    trainer = make(dtype=dtype)
    made = random_batch(5, groups=1)
    before = sampled_logprobs(trainer, made)
    for _ in range(8):
        trainer.step(on_policy(made, trainer))
    after = sampled_logprobs(trainer, made)
    for member in made.groups[0].members:
        change = after[member.id] - before[member.id]
        assert (change > 0) == (member.outcome.reward > 0), (member.id, change)


def test_a_penalty_compares_with_the_base(make):
    trainer = make(kl_coefficient=0.1)
    trainer.step(random_batch(0))
    reference = trainer.learner.reference.weights()
    assert digest(reference) == trainer.learner.masters.adapter.base != digest(trainer.learner.compute.weights())


# --- what is published --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("serving", ["float32", "bfloat16"])
def test_what_an_engine_merges_has_the_published_digest_and_is_what_the_trainer_scores_with(
    make, model, dtype, serving
):
    exporter = Caught()
    trainer = make(exporter=exporter, dtype=dtype, serving_dtype=serving)
    trainer.step(random_batch(0))
    publication = trainer.export(1)
    torch_type = getattr(torch, serving)
    bits = torch.uint16 if serving == "bfloat16" else torch_type
    base = {name: tensor.view(bits).numpy() for name, tensor in load(model, torch_type)[1].items()}
    merged = merge(base, exporter.arrays, scale=exporter.adapter.scale, dtype=serving)
    state = {name: torch.from_numpy(array).view(torch_type) for name, array in merged.items()}
    assert digest(state) == publication.version.digest == digest(trainer.learner.served().weights())
    assert exporter.adapter == Adapter(base=digest(load(model, torch_type)[1]), scale=2.0)


@given(
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    rank=st.integers(1, 5),
    scale=st.floats(2.0**-10, 2.0**10),
    size=st.floats(1e-38, 1e4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_trainer_and_engine_merge_to_the_same_bits(outputs, inputs, rank, scale, size, seed):
    rng = np.random.default_rng(seed)
    draws = [(outputs, inputs), (rank, inputs), (outputs, rank)]
    base, a, b = ((size * rng.standard_normal(shape)).astype(np.float32) for shape in draws)
    low_rank = {"w.lora_A": torch.from_numpy(a), "w.lora_B": torch.from_numpy(b)}
    masters = Masters(trained=low_rank, frozen={"w": torch.from_numpy(base)}, adapter=Adapter(base="", scale=scale))
    found = masters.value("w").numpy()
    expected = merge_one(base, a, b, scale=scale, dtype="float32")
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_what_was_exported_does_not_change_with_the_next_step(make):
    exporter = Caught()
    trainer = make(exporter=exporter)
    trainer.export(1)
    before = {name: array.copy() for name, array in exporter.arrays.items()}
    exported = exporter.arrays
    trainer.step(random_batch(0))
    for name, array in exported.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("transport", ["memory", "checkpoint", "checkpoint of deltas"])
def test_low_rank_matrices_alone_travel_and_become_the_version_where_an_engine_runs(make, model, tmp_path, transport):
    for name in ("shm", "run", "received"):
        (tmp_path / name).mkdir()
    if transport == "memory":
        exporter = in_memory(tmp_path / "shm", fallback=tmp_path / "run")
    else:
        form = "delta" if "delta" in transport else "whole"
        exporter = exporter_for(CheckpointConfig(form=form), run_label="test", directory=tmp_path / "run")
    trainer = make(exporter=exporter)
    receiver = Receiver(label="engine", base=model, directory=tmp_path / "received")
    for number in (1, 2):
        trainer.step(random_batch(number))
        publication = trainer.export(number)
        assert publication.form == "adapter"
        assert publication.size_bytes < sum(m.nbytes for m in trainer.learner.masters.trained.values()) + 10_000
        path = receiver.receive(publication).path
        state = load_file(path)
        assert digest(state) == publication.version.digest
        for name, served in trainer.learner.served().weights().items():
            assert torch.equal(served, state[name]), name
    receiver.close()


def test_an_engine_that_began_with_other_weights_refuses_the_adapter(make, tmp_path):
    (tmp_path / "shm").mkdir()
    exporter = in_memory(tmp_path / "shm", fallback=tmp_path)
    publication = make(exporter=exporter).export(1)
    other = write_tiny(tmp_path / "other", seed=1)
    receiver = Receiver(label="engine", base=other, directory=tmp_path)
    with pytest.raises(PublicationError, match="started from other weights"):
        receiver.receive(publication)
    receiver.close()


def test_the_merged_weights_can_be_published_whole(make, tmp_path):
    (tmp_path / "shm").mkdir()
    exporter = in_memory(tmp_path / "shm", fallback=tmp_path)
    trainer = make(AdapterConfig(publish="merged"), exporter=exporter)
    trainer.step(random_batch(0))
    publication = trainer.export(1)
    state = load_file(publication.location)
    assert set(state) == set(parameter_shapes(TINY)) and digest(state) == publication.version.digest


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_restored_adapter_continues_bit_for_bit(make, tmp_path):
    settings = {"updates_per_batch": 2, "warmup_steps": 5, "weight_decay": 0.01}
    trainer = make(**settings)
    trainer.step(random_batch(0))
    trainer.export(1)
    trainer.step(random_batch(1))
    trainer.save(tmp_path / "checkpoint")
    expected = trainer.step(random_batch(2, groups=4))
    resumed = make(**settings)
    resumed.restore(tmp_path / "checkpoint")
    found = resumed.step(random_batch(2, groups=4))
    assert weights(resumed) == weights(trainer)
    assert digest(resumed.learner.compute.weights()) == digest(trainer.learner.compute.weights())
    timeless = {k: v for k, v in expected.metrics.items() if not k.endswith("_s")}
    assert {k: v for k, v in found.metrics.items() if not k.endswith("_s")} == timeless


def test_a_checkpoint_holds_the_adapter_alone_as_peft_reads_it(make, tmp_path, model):
    trainer = make()
    trainer.step(random_batch(0))
    trainer.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint/model.safetensors").exists()
    stored = load_file(tmp_path / "checkpoint/adapter_model.safetensors")
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
    torch.testing.assert_close(
        stored[name], trainer.learner.masters.trained["model.layers.1.mlp.up_proj.weight.lora_B"]
    )
    said = json.loads((tmp_path / "checkpoint/adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["peft_type"]) == (4, 8, "LORA")
    assert said["base_model_name_or_path"] == str(model)


def test_a_checkpoint_of_an_adapter_amounts_to_the_model_that_engines_were_given(make, tmp_path, model):
    trainer = make()
    trainer.step(random_batch(0))
    publication = trainer.export(1)
    trainer.save(tmp_path / "checkpoint")
    folder = as_model(tmp_path / "checkpoint", model, tmp_path / "merged")
    config, state = load(folder, torch.bfloat16)
    assert config == TINY and digest(state) == publication.version.digest
    assert as_model(tmp_path / "checkpoint", model, folder) == folder == tmp_path / "merged"


def test_a_checkpoint_of_a_whole_model_is_a_model_already(make, tmp_path, model):
    make(None).save(tmp_path / "checkpoint")
    assert as_model(tmp_path / "checkpoint", model, tmp_path / "merged") == tmp_path / "checkpoint"


@pytest.mark.parametrize(
    ("saved", "restored", "message"),
    [
        (None, AdapterConfig(), "of whole weights; remove trainer.adapter"),
        (AdapterConfig(), None, "of an adapter; set trainer.adapter"),
        (AdapterConfig(rank=2), AdapterConfig(rank=3), "other targets or another rank"),
        (AdapterConfig(), AdapterConfig(targets=("q_proj",)), "other targets or another rank"),
        (AdapterConfig(targets=("q_proj",)), AdapterConfig(), "other targets or another rank"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(make, tmp_path, saved, restored, message):
    make(saved).save(tmp_path / "checkpoint")
    with pytest.raises(ModelError, match=message):
        make(restored).restore(tmp_path / "checkpoint")


def test_an_adapter_of_another_base_is_refused(make, tmp_path):
    make().save(tmp_path / "checkpoint")
    other = write_tiny(tmp_path / "other", seed=1)
    trainer = LocalTrainer(TrainerConfig(adapter=AdapterConfig(rank=4)), model=other, temperature=T, exporter=Caught())
    with pytest.raises(ModelError, match="an adapter of another model"):
        trainer.restore(tmp_path / "checkpoint")


# --- configuration ------------------------------------------------------------------------------------


def test_an_unknown_target_is_refused_with_the_fix():
    with pytest.raises(ValidationError, match="no matrix is called 'q_porj'; did you mean 'q_proj'"):
        AdapterConfig(targets=("q_porj",))
    with pytest.raises(ValidationError, match="known: q_proj, k_proj"):
        AdapterConfig(targets=("embed_tokens",))
    with pytest.raises(ValidationError, match="named twice"):
        AdapterConfig(targets=("q_proj", "q_proj"))


def test_a_matrix_in_pefts_files_has_pefts_name():
    assert peft_name("model.layers.0.self_attn.q_proj.weight.lora_A") == (
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    )


def test_the_base_of_an_adapter_is_rounded_to_what_engines_have(model):
    _, masters = adapted(model, AdapterConfig(), dtype=torch.bfloat16, seed=0, device=CPU)
    exact = load(model, torch.float32)[1]
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(masters.value(name), exact[name].bfloat16().float(), rtol=0, atol=0)
