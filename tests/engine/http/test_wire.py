"""The dialect loses nothing on its way, and takes what a server that knows less answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.http import wire
from muster.engine.port import Pause, Staged
from muster.types import Publication, Version

VERSIONS = st.builds(Version, number=st.integers(0, 1 << 31), digest=st.text(max_size=8))
COUNTS = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 1e6)


@given(
    st.builds(
        Publication,
        version=VERSIONS,
        transport=st.sampled_from(["memory", "direct", "checkpoint"]),
        location=st.text(max_size=20),
        size_bytes=COUNTS,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        form=st.sampled_from(["whole", "delta", "adapter"]),
        base=st.none() | VERSIONS,
        max_bytes_per_s=st.none() | st.floats(1, 1e12),
    )
)
def test_a_publication_arrives_as_it_was_sent(publication: Publication) -> None:
    sent = json.dumps(wire.publication_to_json(publication))
    assert wire.UpdateBody.model_validate_json(sent).update_info.publication() == publication


@given(st.builds(Pause, held=COUNTS, finished=COUNTS, aborted=COUNTS, held_tokens=COUNTS))
def test_what_a_pause_met_arrives_as_it_was_sent(pause: Pause) -> None:
    assert wire.pause_from_json(json.loads(json.dumps(wire.pause_to_json(pause)))) == pause


@given(st.builds(Staged, transfer_s=SECONDS, decode_s=SECONDS, size_bytes=COUNTS))
def test_what_staging_cost_arrives_as_it_was_sent(staged: Staged) -> None:
    assert wire.staged_from_json(json.loads(json.dumps(wire.staged_to_json(staged)))) == staged


def test_a_server_that_does_not_count_answers_zeros() -> None:
    assert wire.pause_from_json({"status": "paused"}) == Pause()
    assert wire.staged_from_json({}) == Staged()


@pytest.mark.parametrize("missing", ["number", "digest", "transport", "location", "dtype"])
def test_a_publication_without_what_an_engine_needs_is_refused(missing: str) -> None:
    publication = Publication(
        version=Version(number=1, digest="d"), transport="memory", location="x", size_bytes=1, dtype="float32"
    )
    body = wire.publication_to_json(publication)
    del body["update_info"][missing]
    with pytest.raises(ValueError, match=missing):
        wire.UpdateBody.model_validate(body)
