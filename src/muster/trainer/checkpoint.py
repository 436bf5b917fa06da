"""A training state on disk: everything that the next step depends on.

Law: whole or not at all, and bit-identical: a restored trainer takes the same next step as one never stopped. The
masters are stored under Hugging Face's names beside config and tokenizer, so that a checkpoint is also a model.

    directory/  model.safetensors, config.json    masters, fp32
                tokenizer.json, …                 of the model that training began with
                optimizer/moments.safetensors     AdamW's moments and step counts
                trainer.json                      counters, random state, and the configuration it was made with
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from muster.errors import ModelError
from muster.model.config import LlamaConfig
from muster.model.files import whole_directory
from muster.model.weights import copy_tokenizer, load, write_model

_MOMENTS = "optimizer/moments.safetensors"  # not beside the model: a model folder holds nothing but its tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What is not a tensor. `random` is a numpy bit generator's state; `fingerprint` the trainer's configuration."""

    updates: int
    version: int
    stepped: bool
    random: dict[str, Any]
    fingerprint: dict[str, Any]


def save(
    directory: Path,
    model: Path,
    config: LlamaConfig,
    masters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    counters: Counters,
) -> None:
    """Write a checkpoint; an older one at `directory` is replaced once the new one is complete.

    model: the folder that training began with; its tokenizer is copied.
    """
    replaced = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    with whole_directory(directory) as folder:
        write_model(folder, config, masters)
        copy_tokenizer(model, folder)
        (folder / _MOMENTS).parent.mkdir()
        save_file(_moments(masters, optimizer), folder / _MOMENTS)
        (folder / "trainer.json").write_text(json.dumps(asdict(counters), indent=2) + "\n")
        if directory.exists():
            directory.rename(replaced)
    shutil.rmtree(replaced, ignore_errors=True)


@torch.no_grad()
def restore(
    directory: Path, config: LlamaConfig, masters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> Counters:
    """Copy a checkpoint into `masters` and `optimizer`. Raises `ModelError` when it is not one of this model."""
    try:
        counters = Counters(**json.loads((directory / "trainer.json").read_text()))
        moments = load_file(directory / _MOMENTS)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{directory}: not a checkpoint of a trainer ({error})") from None
    saved, state = load(directory, torch.float32)
    if saved != config:
        raise ModelError(f"{directory}: a checkpoint of another model; start from the model it was made with")
    for name, master in masters.items():
        master.copy_(state[name])
        optimizer.state[master] = {
            key: moments[f"{name}|{key}"].to(master.device if key != "step" else "cpu")
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}|{key}" in moments
        }
    return counters


def _moments(masters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}|{key}": value.contiguous()
        for name, master in masters.items()
        for key, value in optimizer.state[master].items()
    }
