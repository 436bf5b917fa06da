from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories import failure, infra, make_trajectory, success
from muster.errors import JournalError, UserError
from muster.journal import DropRow, EventRow, GroupRow, Journal, StepRow, TrajectoryRow
from muster.types import Evaluation, PublicationRecord, Turn, Version


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.create(tmp_path / "journal.db", meta={"run": "r", "config": {"seed": 1}})


@pytest.mark.parametrize("outcome", [success(0.5), failure(), infra()])
def test_a_trajectory_comes_back_as_it_was(journal: Journal, outcome) -> None:
    before = make_trajectory(outcome=outcome, segments=2, version=3)
    journal.record_trajectory(before, sibling=4, purpose="train")
    after = journal.trajectory(before.id)
    assert after.outcome == before.outcome
    assert after.spans == before.spans
    assert len(after.segments) == 2
    for a, b in zip(after.segments, before.segments, strict=True):
        assert np.array_equal(a.tokens_T, b.tokens_T)
        assert np.array_equal(a.versions_T, b.versions_T)
        assert np.array_equal(a.logprobs_T, b.logprobs_T)
        assert np.array_equal(a.sampled_T, b.sampled_T)


def test_turns_come_back_with_their_commands_one_by_one(journal: Journal) -> None:
    turn = Turn(index=0, reply="r", command="a\nb", observation="x\ny", commands=("a", "b"), observations=("x", "y"))
    before = replace(make_trajectory(), turns=(turn,))
    journal.record_trajectory(before, sibling=0, purpose="train")
    assert journal.trajectory(before.id).turns == (turn,)


def test_turns_of_before_commands_were_kept_one_by_one_can_be_read(journal: Journal) -> None:
    old = {"index": 0, "reply": "r", "command": "a", "observation": "x"}
    journal.record_trajectory(make_trajectory(), sibling=0, purpose="train")
    (row,) = journal.rows(TrajectoryRow)
    (turn,) = replace(row, turns=[old]).trajectory().turns
    assert (turn.command, turn.commands, turn.observations) == ("a", (), ())


def test_versions_are_columns_for_counting(journal: Journal) -> None:
    journal.record_trajectory(make_trajectory(version=7), sibling=0, purpose="train")
    (row,) = journal.rows(TrajectoryRow, "oldest_version >= ?", 7)
    assert (row.oldest_version, row.newest_version, row.sampled_tokens) == (7, 7, 4)


def test_a_row_with_the_same_key_replaces_the_earlier_one(journal: Journal) -> None:
    group = GroupRow(id="g", task_id="t", submission=0, version=0, admitted_at=0.0)
    journal.record(group)
    journal.record(GroupRow(id="g", task_id="t", submission=0, version=0, admitted_at=0.0, state="ready"))
    assert [g.state for g in journal.rows(GroupRow)] == ["ready"]


def test_a_failed_transaction_leaves_nothing(journal: Journal) -> None:
    with pytest.raises(RuntimeError), journal.transaction():
        journal.record(EventRow(at=0.0, kind="k", message="m"))
        raise RuntimeError
    assert journal.count(EventRow) == 0


def test_a_reader_sees_what_a_writer_committed(journal: Journal) -> None:
    journal.record(StepRow(step=0, started=0.0, ended=1.0, metrics={"loss": 0.5}))
    with Journal.open(journal.path) as reader:
        assert reader.rows(StepRow)[0].metrics == {"loss": 0.5}
        assert reader.meta()["config"] == {"seed": 1}


def test_publications_and_evaluations_come_back_whole(journal: Journal) -> None:
    version = Version(number=1, digest="d")
    publication = PublicationRecord(
        version=version, replica="engine0", export_s=0.1, stage_s=0.2, commit_s=0.01, pause_s=0.02, latency_s=0.4,
        size_bytes=10, digest_equal=True, canary_difference=0.01,
    )  # fmt: skip
    evaluation = Evaluation(
        step=1, version=version, tasks=2, graded=2, passed=1, pass_rate=0.5, low=0.1, high=0.9,
        by_family={"f": (1, 2)}, ungraded={}, fingerprint={"engine": "embedded"}, started=0.0, ended=1.0,
    )  # fmt: skip
    journal.record_publication(publication)
    journal.record_evaluation(evaluation)
    assert journal.publications() == [publication]
    assert journal.evaluations() == [evaluation]


def test_a_publication_of_an_older_journal_lacks_what_was_not_measured_then(journal: Journal) -> None:
    row = {
        "version": {"number": 1, "digest": "d"}, "replica": "engine0", "export_s": 0.1, "stage_s": 0.2,
        "commit_s": 0.01, "pause_s": 0.02, "latency_s": 0.4, "size_bytes": 10, "digest_equal": True,
        "canary_difference": None,
    }  # fmt: skip
    with sqlite3.connect(journal.path) as connection:
        connection.execute("INSERT INTO publication VALUES (1, 'engine0', ?)", [json.dumps(row)])
    (publication,) = journal.publications()
    assert (publication.stage_s, publication.transfer_s, publication.recomputed_tokens) == (0.2, 0.0, 0)


def test_an_existing_journal_is_never_overwritten(journal: Journal) -> None:
    with pytest.raises(UserError, match="exists already"):
        Journal.create(journal.path, meta={})


def test_a_directory_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no journal there"):
        Journal.open(tmp_path / "journal.db")


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="not a journal"):
        Journal.open(path)


def test_ids_are_read_without_their_rows(journal: Journal) -> None:
    journal.record(*(DropRow(id=id, reason="r", at=at) for id, at in (("b", 1.0), ("a", 2.0))))
    assert journal.ids(DropRow) == ["a", "b"]
    assert journal.ids(DropRow, "at > ?", 1.0) == ["a"]


def test_a_copy_in_memory_holds_what_was_committed_and_goes_its_own_way() -> None:
    with Journal.in_memory(meta={"run": "x"}) as journal:
        journal.record(DropRow(id="a", reason="r", at=0.0))
        copy = journal.copied()
        assert copy.rows(DropRow) == journal.rows(DropRow)
        assert copy.to_bytes() == journal.copied().to_bytes()
        journal.record(DropRow(id="b", reason="r", at=0.0))
        assert copy.ids(DropRow) == ["a"]
        assert copy.meta()["run"] == "x"


@pytest.fixture
def old(journal: Journal) -> Path:
    """A journal from before groups and batches had the columns for replay, and from before there were drops."""
    journal.record(GroupRow(id="g0", task_id="t", submission=0, version=0, admitted_at=1.0, state="ready"))
    journal.close()
    with sqlite3.connect(journal.path) as db:
        for table, column in (("grp", "replayed"), ("batch", "replayed")):
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute("DROP TABLE dropped")
    db.close()
    return journal.path


def test_what_an_old_run_did_not_record_reads_as_the_default(old: Path) -> None:
    with Journal.open(old) as journal:
        (row,) = journal.rows(GroupRow)
        assert (row.state, row.reused) == ("ready", [])
        assert (journal.rows(DropRow), journal.ids(DropRow), journal.count(DropRow)) == ([], [], 0)


def test_an_old_run_that_goes_on_records_the_new_columns(old: Path) -> None:
    with Journal.open(old, write=True) as journal:
        (row,) = journal.rows(GroupRow)
        journal.record(replace(row, reused=["g7.1"]), DropRow(id="a", reason="r", at=0.0))
        (row,) = journal.rows(GroupRow, "replayed <> ?", "[]")
        assert row.reused == ["g7.1"] and row.state == "ready" and journal.ids(DropRow) == ["a"]
