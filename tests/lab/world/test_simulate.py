from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lab.worlds import lived, quiet
from muster.errors import UserError
from muster.journal import BatchRow, SpanRow
from muster.lab.world.chaos import Fault
from muster.lab.world.laws import Law
from muster.lab.world.simulate import SimOptions, check_times, live, options, run_simulation, shrunk


def test_a_summary_counts_worlds_and_meets_its_target() -> None:
    said: list[str] = []
    result = run_simulation(SimOptions(seeds=4, jobs=2), said.append)
    assert result.met
    assert "target sim_violations 0 <= 0 met" in result.table()
    assert said[-1].startswith("4 worlds of ")
    assert {row["fault"] for row in result.rows} == set(Fault)
    assert json.loads(result.to_json())["notes"]["seeds"] == 4


def test_a_broken_law_ends_the_run_with_the_command_that_reproduces_it() -> None:
    said: list[str] = []
    chosen = SimOptions(seeds=50, first=2, jobs=1, faults=(Fault.KILL, Fault.SANDBOX_DEATH), broken=Law.SANDBOXES)
    result = run_simulation(chosen, said.append)
    seed = 2 + int(result.notes["seeds"]) - 1
    assert result.met
    assert (
        said[0].splitlines()[1].split()
        == f"muster sim --first {seed} --seeds 1 --faults none --break sandboxes".split()
    )
    assert "sandboxes at " in said[0], "the law and the instant"


def test_a_failing_world_is_told_with_no_more_faults_than_it_needs() -> None:
    assert shrunk(0, Law.SANDBOXES, (Fault.KILL, Fault.LOST_ACK), broken=Law.SANDBOXES) == ()
    offered = (Fault.SANDBOX_DEATH, Fault.BOOT_FAILURE, Fault.VERIFIER_LOST, Fault.LONG_TRAJECTORIES)
    needs = shrunk(5, Law.ATTRIBUTION, offered, broken=Law.ATTRIBUTION)
    assert needs == (Fault.SANDBOX_DEATH,)
    violation = live(5, needs, Law.ATTRIBUTION).violation
    assert violation is not None
    assert violation.law is Law.ATTRIBUTION


def test_a_law_nobody_noticed_misses_the_target() -> None:
    result = run_simulation(SimOptions(seeds=1, jobs=1, faults=(Fault.KILL,), broken=Law.CRASH), lambda line: None)
    assert not result.met


@pytest.mark.parametrize(
    ("words", "message"),
    [({"faults": ["flood"]}, "no fault 'flood'; there are boot_failure"), ({"broken": "x"}, "no law 'x'")],
)
def test_an_unknown_name_is_answered_with_the_known_ones(words: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options(seeds=1, first=0, jobs=1, **words)  # type: ignore[arg-type]


def test_the_parts_of_every_ttb_are_read_from_the_record_and_a_lost_one_is_seen() -> None:
    _, journal = lived(quiet(7, max_lag=1))
    assert check_times(journal) == []
    first = journal.rows(BatchRow)[0]
    assert journal.rows(SpanRow), "spans to read"
    journal.record(replace(first, groups=["gone"]))
    assert "batch 0" in check_times(journal)[0]
