"""The transports where they run: in the trainer, after real optimiser steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from muster import clock
from muster.errors import PublicationError
from muster.model.weights import digest
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, TransportConfig
from muster.publish.transports import exporter_for
from muster.trainer.config import TrainerConfig
from muster.trainer.local import LocalTrainer
from muster.trainer.process.trainer import ProcessTrainer
from muster.transport.receive import Receiver
from muster.types import Publication
from trainer.tiny import random_batch, write_tiny

TRAINER = TrainerConfig(dtype="float32", serving_dtype="bfloat16", threads=1, lr=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize(
    "config", [MemoryConfig(), DirectConfig(), CheckpointConfig(form="delta")], ids=lambda config: config.kind
)
def test_what_an_engine_receives_after_each_step_is_what_was_trained(model, tmp_path, config: TransportConfig):
    exporter = exporter_for(config, run_label=tmp_path.name, directory=tmp_path)
    receiver = Receiver(label="e0", directory=tmp_path)
    trainer = LocalTrainer(TRAINER, model=model, temperature=0.8, exporter=exporter)
    digests = []
    for number in range(3):
        if number:
            trainer.step(random_batch(number))
        publication = trainer.export(number)
        digests.append(digest(load_file(receiver.receive(publication).path)))
        assert digests[-1] == publication.version.digest
    assert len(set(digests)) == 3
    assert publication.form == getattr(config, "form", "whole")
    receiver.close()
    exporter.clear()


def test_the_trainers_process_serves_itself_and_when_it_is_gone_an_engine_is_told_at_once(model, tmp_path):
    exporter = exporter_for(DirectConfig(form="delta"), run_label=tmp_path.name, directory=tmp_path)
    receiver = Receiver(label="e0", directory=tmp_path)

    async def body() -> list[Publication]:
        async with ProcessTrainer(TRAINER, model=str(model), temperature=0.8, exporter=exporter) as trainer:
            published = [await trainer.export(0)]
            await trainer.step(random_batch(1))
            published.append(await trainer.export(1))
            state = load_file(receiver.receive(published[1]).path)
            assert digest(state) == published[1].version.digest
            return published

    first, second = clock.run(body())
    assert (first.form, second.form) == ("whole", "delta")
    with pytest.raises(PublicationError, match="refused"):
        Receiver(label="restarted", directory=tmp_path).receive(second)
    receiver.close()
    exporter.clear()
