"""A training state on disk: everything that the next step depends on.

Law: whole or not at all, and bit-identical: a restored trainer takes the same next step as one never stopped. What is
frozen is not stored, only named by its digest. A checkpoint of a whole model is also a model, one of an adapter is
also an adapter as PEFT reads it.

    directory/  model.safetensors, config.json    masters, fp32, under Hugging Face's names
             or adapter_model.safetensors, adapter_config.json
                tokenizer.json, …                 of the model that training began with
                optimizer/moments.safetensors     AdamW's moments and step counts
                trainer.json                      counters, random state, and the configuration it was made with
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from muster.errors import ModelError
from muster.model.config import LlamaConfig
from muster.model.files import whole_directory
from muster.model.weights import copy_tokenizer, load, write_model
from muster.model.weights import save as write_folder
from muster.trainer.adapter import peft_config, peft_name
from muster.trainer.config import AdapterConfig
from muster.trainer.learner import DTYPES, Learner
from muster.trainer.masters import Masters, adapted

_MOMENTS = "optimizer/moments.safetensors"  # not beside the model: a model folder holds nothing but its tensors
_ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """State that is no tensor. `random` is a numpy bit generator's state; `fingerprint` the trainer's configuration."""

    updates: int
    version: int
    stepped: bool
    random: dict[str, Any]
    fingerprint: dict[str, Any]
    base: str | None = None  # digest of the weights that an adapter stands beside, in the serving dtype


def save(directory: Path, model: Path, learner: Learner, counters: CheckpointState) -> None:
    """Write a checkpoint; an older one at `directory` is replaced once the new one is complete.

    model: the folder that training began with; its tokenizer is copied.
    """
    replaced = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    with whole_directory(directory) as folder:
        if learner.config.adapter is None:
            write_model(folder, learner.model_config, learner.masters.trained)
        else:
            _write_adapter(folder, model, learner.config.adapter, learner.masters.trained)
        copy_tokenizer(model, folder)
        (folder / _MOMENTS).parent.mkdir()
        save_file(_moments(learner), folder / _MOMENTS)
        (folder / "trainer.json").write_text(json.dumps(asdict(counters), indent=2) + "\n")
        if directory.exists():
            directory.rename(replaced)
    shutil.rmtree(replaced, ignore_errors=True)


@torch.no_grad()
def restore(directory: Path, learner: Learner) -> CheckpointState:
    """Copy a checkpoint into masters and optimiser. Raises `ModelError` when it is not one of this model."""
    counters = _counters(directory)
    try:
        moments = load_file(directory / _MOMENTS)
    except OSError as error:
        raise _no_checkpoint(directory, error) from None
    state = _trained(directory, learner.model_config, learner.masters, counters)
    for name, master in learner.masters.trained.items():
        master.copy_(state[name])
        learner.optimizer.state[master] = {
            key: moments[f"{name}|{key}"].to(master.device if key != "step" else "cpu")
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}|{key}" in moments
        }
    return counters


def as_model(directory: Path, model: Path, target: Path) -> Path:
    """The model folder that a checkpoint amounts to: itself, or `target`, where an adapter is merged once.

    model: the folder that training began with. The merged weights are those that engines were given, bit for bit.
    Raises `ModelError`.
    """
    counters = _counters(directory)
    if counters.base is None:
        return directory
    if not target.is_dir():
        adapter = AdapterConfig.model_validate(counters.fingerprint["adapter"])
        dtype = DTYPES[counters.fingerprint["serving_dtype"]]
        config, start = adapted(model, adapter, dtype=dtype, seed=0, device=torch.device("cpu"))
        masters = replace(start, trained=_trained(directory, config, start, counters))
        state = {name: masters.value(name).to(dtype) for name in masters.frozen}
        write_folder(target, config, state, tokenizer_from=directory)
    return target


def _trained(directory: Path, config: LlamaConfig, masters: Masters, counters: CheckpointState) -> dict[str, Tensor]:
    """Load what a checkpoint holds for each of `masters.trained`."""
    base = None if masters.adapter is None else masters.adapter.base
    if (base is None) != (counters.base is None):
        holds, do = ("whole weights", "remove") if counters.base is None else ("an adapter", "set")
        raise ModelError(f"{directory}: a checkpoint of {holds}; {do} trainer.adapter, as when it was made")
    if base is None:
        saved, state = load(directory, torch.float32)
        if saved != config:
            raise ModelError(f"{directory}: a checkpoint of another model; start from the model it was made with")
        return state
    if base != counters.base:
        raise ModelError(f"{directory}: an adapter of another model; start from the model it was made with")
    stored = load_file(directory / _ADAPTER)
    state = {name: stored[peft_name(name)] for name in masters.trained if peft_name(name) in stored}
    expected = {name: master.shape for name, master in masters.trained.items()}
    if len(stored) != len(expected) or {name: tensor.shape for name, tensor in state.items()} != expected:
        raise ModelError(f"{directory}: an adapter of other targets or another rank; set trainer.adapter as it was")
    return state


def _counters(directory: Path) -> CheckpointState:
    try:
        return CheckpointState(**json.loads((directory / "trainer.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise _no_checkpoint(directory, error) from None


def _no_checkpoint(directory: Path, error: Exception) -> ModelError:
    return ModelError(f"{directory}: not a checkpoint of a trainer ({error})")


def _write_adapter(folder: Path, model: Path, config: AdapterConfig, trained: Mapping[str, Tensor]) -> None:
    tensors = {peft_name(name): master.detach().contiguous() for name, master in trained.items()}
    save_file(tensors, folder / _ADAPTER, metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(config, str(model)), indent=2) + "\n")


def _moments(learner: Learner) -> dict[str, Tensor]:
    return {
        f"{name}|{key}": value.contiguous()
        for name, master in learner.masters.trained.items()
        for key, value in learner.optimizer.state[master].items()
    }
