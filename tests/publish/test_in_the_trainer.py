"""The transports where they run: the exporter in the trainer's process, after real optimiser steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from muster import clock
from muster.errors import PublicationError, TrainerError
from muster.model.weights import digest
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, TransportConfig
from muster.publish.transports import exporter_for
from muster.trainer.config import TrainerConfig
from muster.trainer.process import ProcessTrainer
from muster.transport.receive import Receiver
from muster.types import Publication
from trainer.tiny import random_batch, write_tiny

TRAINER = TrainerConfig(dtype="float32", serving_dtype="bfloat16", threads=1, lr=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize(
    "config",
    [MemoryConfig(), DirectConfig(), DirectConfig(form="delta"), CheckpointConfig(form="delta")],
    ids=["memory", "direct", "direct delta", "checkpoint delta"],
)
def test_what_an_engine_receives_after_each_step_is_what_was_trained(model, tmp_path, config: TransportConfig):
    exporter = exporter_for(config, run_label=tmp_path.name, directory=tmp_path)
    receiver = Receiver(label="e0", directory=tmp_path)

    async def body() -> list[Publication]:
        published = []
        async with ProcessTrainer(TRAINER, model=str(model), temperature=0.8, exporter=exporter) as trainer:
            for number in range(3):
                if number:
                    await trainer.step(random_batch(number))
                publication = await trainer.export(number)
                state = load_file(receiver.receive(publication).path)
                assert digest(state) == publication.version.digest
                assert next(iter(state.values())).dtype == torch.bfloat16
                published.append(publication)
        return published

    try:
        published = clock.run(body())
        assert len({p.version.digest for p in published}) == 3
        if getattr(config, "form", "whole") == "delta":
            assert [p.form for p in published] == ["whole", "delta", "delta"]
    finally:
        receiver.close()
        exporter.clear()


def test_when_the_trainer_is_gone_a_restarted_engine_is_told_at_once(model, tmp_path):
    exporter = exporter_for(DirectConfig(), run_label=tmp_path.name, directory=tmp_path)

    async def body() -> Publication:
        async with ProcessTrainer(TRAINER, model=str(model), temperature=0.8, exporter=exporter) as trainer:
            return await trainer.export(0)

    publication = clock.run(body())
    with pytest.raises(PublicationError, match="refused"):
        Receiver(label="e0", directory=tmp_path).receive(publication)
    exporter.clear()


def test_a_place_that_cannot_be_written_fails_the_export_and_the_next_one_works(model, tmp_path):
    blocked = tmp_path / "weights"
    blocked.write_text("in the way")
    exporter = exporter_for(CheckpointConfig(location=str(blocked)), run_label="r", directory=tmp_path)

    async def body() -> Publication:
        async with ProcessTrainer(TRAINER, model=str(model), temperature=0.8, exporter=exporter) as trainer:
            with pytest.raises(PublicationError, match="cannot write") as caught:
                await trainer.export(0)
            assert not isinstance(caught.value, TrainerError)
            blocked.unlink()
            return await trainer.export(0)

    assert Path(clock.run(body()).location).parent == blocked
