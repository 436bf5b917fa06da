"""Figures of made-up publications; and every transport with a tiny model, in processes of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny_llama as tiny
from muster.engine.config import EmbeddedEngineConfig
from muster.errors import UserError
from muster.lab.bench.publish import publish
from muster.lab.bench.publish.arm import Published, published
from muster.lab.bench.publish.load import TokenMeter
from muster.types import PublicationRecord, Version

WHOLE_BYTES = 1_000


def record(
    number: int = 2, digest: str = "d2", *, size_bytes: int = WHOLE_BYTES, pause_s: float = 0.1, transfer_s: float = 1.0
) -> PublicationRecord:
    return PublicationRecord(
        version=Version(number=number, digest=digest),
        replica="engine0",
        export_s=1.0,
        stage_s=2.0,
        commit_s=0.05,
        pause_s=pause_s,
        latency_s=4.0,
        size_bytes=size_bytes,
        digest_equal=True,
        canary_difference=0.01,
        transfer_s=transfer_s,
    )


def of(arm: str, own: PublicationRecord, *, cap: float = 0) -> Published:
    return Published(
        arm=arm,
        number=own.version.number,
        cap=cap,
        record=own,
        quiet_per_s=100.0,
        exporting_per_s=90.0,
        staging_per_s=75.0,
    )


def missed(found: list[Published]) -> set[str]:
    return {t.name for t in publish.targets(found, WHOLE_BYTES) if not t.met}


def test_a_meter_counts_evenly_between_two_readings() -> None:
    meter = TokenMeter()
    for at_s, tokens in ((0.0, 0), (1.0, 100), (2.0, 100), (4.0, 500)):
        meter.read(at_s, tokens)
    assert meter.rate(0.5, 1.0) == pytest.approx(100)
    assert meter.rate(1.0, 2.0) == 0
    assert meter.rate(1.0, 3.0) == pytest.approx(100)


def test_the_parts_of_a_publication_lie_where_its_record_says() -> None:
    meter = TokenMeter()
    # 100 a second; exported from 10 to 11 at 90, published at 11.9, staged to 13.9 at 50, paused to 14
    for at_s, tokens in ((5, 0), (10, 500), (11, 590), (11.9, 680), (13.9, 780), (14, 780), (20, 1380)):
        meter.read(at_s, tokens)
    found = published("direct-whole", 2, 0, record(), meter, 10.0, 2.0)
    assert found.quiet_per_s == pytest.approx(100)
    assert found.export_slowdown == pytest.approx(0.1)
    assert found.stage_slowdown == pytest.approx(0.5)
    assert found.pause_share == pytest.approx(0.025)


def test_a_row_holds_medians_over_the_repeats() -> None:
    own = [of("direct-whole", record(pause_s=pause_s)) for pause_s in (0.1, 0.3, 0.2)]
    row = publish.row("direct-whole", 0, own, WHOLE_BYTES)
    assert (row["pause"], row["of whole"], row["slower staging"]) == (0.2, 1.0, 0.25)


def test_every_target_can_be_missed() -> None:
    good = [
        of("memory-whole", record()),
        of("checkpoint-delta", record(size_bytes=100)),
        of("checkpoint-delta", record(size_bytes=100, transfer_s=1.0), cap=100.0),
        of("checkpoint-adapter", record(digest="another training")),
    ]
    assert missed(good) == set()
    assert missed([*good, of("direct-whole", record(digest="other"))]) == {"digest_equal"}
    assert missed([of("direct-whole", replace(record(), digest_equal=False))]) == {"digest_equal"}
    assert missed([of("direct-delta", record(size_bytes=101))]) == {"direct_delta_bytes_of_whole"}
    assert missed([of("direct-whole", record(pause_s=0.5))]) == {"direct_whole_pause_of_latency"}
    fast = [of("direct-whole", record()), of("direct-whole", record(transfer_s=0.5), cap=1_000.0)]
    assert missed(fast) == {"direct_whole_pace_of_cap"}


def test_an_arm_or_an_engine_that_is_not_known_is_the_users_error() -> None:
    with pytest.raises(UserError, match="it is one of memory-whole"):
        publish.run_publish_bench(print, model="m", engine=publish.engine_of("embedded"), repeats=1, only=["direct"])
    with pytest.raises(UserError, match="embedded or vllm"):
        publish.engine_of("tgi")
    with pytest.raises(UserError, match="--engine vllm"):
        publish.engine_of("embedded", python="/opt/vllm/bin/python")


@pytest.mark.model
def test_all_arms_publish_the_same_weights_and_a_delta_is_small(tmp_path: Path) -> None:
    engine = EmbeddedEngineConfig(max_streams=2, max_model_len=512, kv_capacity_tokens=4096, threads=1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, tiny.CONFIG.vocab_size, 12).astype(np.int32) for _ in range(2)]
    said: list[object] = []
    result = publish.run_publish_bench(
        said.append,
        model=str(tiny.write_model(tmp_path / "model")),
        engine=engine,
        repeats=1,
        only=["memory-whole", "direct-delta"],
        streams=2,
        quiet_s=0.1,
        prompts=prompts,
    )
    assert len(said) == 2
    targets = {t.name: t for t in result.targets}
    assert targets["digest_equal"].met
    assert targets["direct_delta_bytes_of_whole"].met
    assert [row["arm"] for row in result.rows] == ["memory-whole", "direct-delta"]
