from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from muster.errors import ConfigError
from muster.lab.bench.ttb import command, grid, virtual, words
from muster.lab.bench.ttb.arms import ALL, BASELINE, MAIN, ablation, arms
from muster.lab.bench.ttb.declaration import BUILT_IN, Declaration, laid_over, read
from muster.lab.bench.ttb.measure import Measured, measure
from muster.lab.bench.ttb.virtual import Job, cut, row, targets
from muster.lab.result import BenchResult
from muster.types import Stage

SMALL = """
[workload]
groups = 4
group_size = 2
turns = { median = 4, sigma = 1.0, cap = 10 }
tool_s = { median = 0.85, sigma = 1.5, cap = 30 }
max_context_tokens = 16_000

[fleets.node]
fleet = { replicas = 2, preset = "h100x2-qwen-32b" }
sandboxes = { slots = 4, verifier_slots = 4 }
schedule = { slots = 4 }

[fleets.slots]
fleet = { replicas = 2, preset = "h100-llama-8b" }
sandboxes = { slots = 2, verifier_slots = 4 }
schedule = { slots = 2 }

[baseline]
fleet.router = { policy = "round_robin" }
sandboxes = { verify = "in_place", times = { boot_s = { median = 23 }, stop_s = 10 } }
schedule = { order = "launch", groups_per_batch = 4, group_size = 2 }

[parts.routing]
fleet.router = { policy = "affinity" }

[parts.execution]
sandboxes = { verify = "fork", times = { boot_s = { median = 0.025 }, stop_s = 0.05 } }

[parts.assembly]
schedule.order = "group"

[policies.over]
schedule = { over_launch = 1.5, slots = 12 }
sandboxes.slots = 12

[faults."40 %"]
mishaps.rate = 0.4
schedule.max_attempts = 9

[grid.slots]
"8" = { fleets.node = { sandboxes.slots = 8, schedule.slots = 8 } }
"""


@pytest.fixture(scope="module")
def declaration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ttb") / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def result(declaration: Path) -> BenchResult:
    return virtual.run_ttb(repetitions=1, declaration=declaration, jobs=1)


@pytest.fixture(scope="module")
def measured(declaration: Path) -> dict[str, Measured]:
    return {arm.name: measure(arm.world, seed=0) for arm in arms(read(declaration)) if arm.fleet == MAIN}


def rendered(render: object, result: BenchResult) -> str:
    out = io.StringIO()
    render(result, Console(file=out, width=200))  # type: ignore[operator]
    return out.getvalue()


def test_the_declaration_in_the_package_is_whole_and_every_number_has_its_source() -> None:
    declared = read()
    assert [a.name for a in ablation(declared)] == [
        "baseline",
        "routing alone",
        "execution alone",
        "assembly alone",
        "+ execution",
        "all",
    ]
    assert {"path", "slots", "engine"} <= set(declared.fleets)
    worlds = {a.key: a.world for a in arms(declared)}
    ours, theirs = worlds["node/all"], worlds["node/baseline"]
    assert ours.workload == theirs.workload
    assert ours.workload.groups * ours.workload.group_size == 256
    assert ours.fleet.config() == theirs.fleet.config()
    assert ours.sandboxes.slots == theirs.sandboxes.slots
    assert theirs.fleet.router.policy == "round_robin"
    assert theirs.sandboxes.times.stop_s == 10
    comments = [line for line in BUILT_IN.read_text().splitlines() if line.startswith("#")]
    assert len(comments) >= 30


def test_every_cell_of_the_packaged_grid_is_a_world() -> None:
    cells = dict(grid._cells(read()))
    assert {axis for axis, _ in cells} >= {"slots", "replicas", "cold start", "command sigma", "siblings alike"}
    for declared in cells.values():
        for parts in ((), tuple(declared.parts)):
            assert declared.world(MAIN, parts=parts)


def test_the_parts_of_every_arm_sum_to_its_time(measured: dict[str, Measured]) -> None:
    for own in measured.values():
        assert sum(own.parts.values()) == pytest.approx(own.ttb_s)
        assert sum(own.states.values()) == pytest.approx(1.0)
    columns = [stage for stages in virtual.CAUSES.values() for stage in stages]
    assert sorted(columns) == sorted(Stage), "every stage is in one column"


def test_no_fixed_cohort_beats_its_bound_or_selects(measured: dict[str, Measured]) -> None:
    for name in (BASELINE, "routing alone", ALL):
        own = measured[name]
        assert own.score >= 1.0
        assert own.length_ratio == own.p90_ratio == 1.0
        assert own.inclusion == (1.0,) * len(own.inclusion)
        assert own.wasted_tokens == 0


def test_each_part_changes_what_it_is_for(measured: dict[str, Measured]) -> None:
    base = measured[BASELINE]
    assert measured["routing alone"].hit_rate > base.hit_rate
    assert measured["execution alone"].wasted_slot_s < base.wasted_slot_s
    assert measured[ALL].ttb_s < base.ttb_s


def test_over_launching_selects_the_short_and_says_so(measured: dict[str, Measured]) -> None:
    own = measured["over"]
    assert own.length_ratio < 1.0
    assert own.wasted_tokens > 0
    assert own.inclusion[-1] < 1.0


def test_infrastructure_that_fails_costs_time_and_no_selection(measured: dict[str, Measured]) -> None:
    own = measured["40 % faults"]
    assert own.refills > 0
    assert own.length_ratio == 1.0


def test_two_processes_measure_what_one_does(declaration: Path) -> None:
    chosen = ablation(read(declaration))[:1]
    jobs = [Job(key=a.key, world=a.world, seed=s) for s in (0, 1) for a in chosen]
    assert virtual.gathered(jobs, 2, lambda line: None) == virtual.gathered(jobs, 1, lambda line: None)


def test_the_result_has_a_row_for_every_arm_and_the_targets(result: BenchResult, declaration: Path) -> None:
    assert [f"{r['fleet']}/{r['arm']}" for r in result.rows] == [a.key for a in arms(read(declaration))]
    assert [t.name for t in result.targets] == [
        "ttb_cut",
        "length_ratio_low",
        "length_ratio_high",
        "score_slots",
    ]
    told = json.loads(result.to_json())
    assert told["notes"]["declaration"] == SMALL
    assert len(told["notes"]["inclusion"]["node/over"]) == 10


def test_a_cut_is_paired_by_seed() -> None:
    def at(ttb_s: float) -> Measured:
        return Measured(
            ttb_s=ttb_s, parts={}, bound_s=10.0, bound="path", states={}, hit_rate=0.0, computed_tokens=1,
            needed_tokens=1, wasted_tokens=0, sampled_tokens=1, wasted_slot_s=0.0, preemptions=0, length_ratio=1.0,
            p90_ratio=1.0, inclusion=(1.0,), batches=1, refills=0, digest="",
        )  # fmt: skip

    runs = {"a": [at(100.0), at(1000.0), at(10.0)], "b": [at(50.0), at(100.0), at(8.0)]}
    assert cut(runs, "b", "a") == pytest.approx(0.5), "the median of 0.5, 0.9 and 0.2"


def test_a_missed_target_is_printed_as_missed(measured: dict[str, Measured]) -> None:
    slow = measured[BASELINE]
    found = {t.name: t for t in targets({f"{MAIN}/{BASELINE}": [slow], f"{MAIN}/{ALL}": [slow]})}
    assert found["ttb_cut"].value == 0
    assert str(found["ttb_cut"]).endswith("missed")
    assert found["length_ratio_low"].met


def test_the_tables_show_every_arm_in_words(result: BenchResult) -> None:
    text = rendered(words.render, result)
    for title in ("Time to the batch", "Seconds of the TTB by cause", "What was wasted, and who was selected"):
        assert title in text
    assert text.count("routing alone") == 3
    assert "target ttb_cut" in text


def test_the_grid_compares_baseline_and_all_in_every_cell(declaration: Path) -> None:
    result = grid.run_grid(repetitions=1, declaration=declaration, jobs=1)
    assert [(r["axis"], r["cell"]) for r in result.rows] == [("as declared", ""), ("slots", "8")]
    assert result.rows[0]["ours_s"] != result.rows[1]["ours_s"]
    assert "Where the gain holds" in rendered(words.render_grid, result)


def test_the_figure_is_drawn(result: BenchResult, tmp_path: Path) -> None:
    plot = pytest.importorskip("muster.lab.bench.ttb.plot")
    plot.write_figure(result, tmp_path / "ttb.png")
    assert (tmp_path / "ttb.png").read_bytes().startswith(b"\x89PNG")


def test_the_row_of_a_single_seed_is_that_seed(measured: dict[str, Measured], declaration: Path) -> None:
    (arm,) = [a for a in ablation(read(declaration)) if a.name == ALL]
    runs = {arm.key: [measured[ALL]], f"{MAIN}/{BASELINE}": [measured[BASELINE]]}
    told = row(arm, runs)
    assert told["ttb_p50_s"] == told["ttb_p90_s"] == measured[ALL].ttb_s
    assert sum(float(told[f"{name}_s"]) for name in virtual.CAUSES) == pytest.approx(measured[ALL].ttb_s)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[workload", "not TOML"),
        ("[workload]\n[fleets.a]\n[baseline]\n[parts.x]\n[typo]\n", "typo"),
        (SMALL.replace("policy = \"affinity\"", "policy = \"nearest\""), "fleet.router.policy"),
        (SMALL.replace("preset = \"h100-llama-8b\"", "preset = \"h900\""), "no such preset"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_names_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        arms(read(path))


def test_an_unknown_fleet_is_named_with_those_that_exist(declaration: Path) -> None:
    with pytest.raises(ConfigError, match="no fleet 'large'; there are node, slots"):
        read(declaration).world("large")


def test_modes_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        command.run(console=Console(), real=True, grid=True)
    with pytest.raises(ConfigError, match="--plot draws"):
        command.run(console=Console(), grid=True, plot=Path("x.png"))


TABLES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


@given(TABLES, TABLES)
def test_what_is_laid_over_wins_and_the_rest_stays(below: dict[str, object], above: dict[str, object]) -> None:
    merged = laid_over(below, above)
    assert laid_over(merged, above) == merged
    assert set(merged) == set(below) | set(above)
    assert laid_over(below, {}) == below


def test_a_distribution_is_replaced_whole() -> None:
    below = {"tool_s": {"median": 1, "sigma": 2, "cap": 3}}
    assert laid_over(below, {"tool_s": {"median": 5}}) == {"tool_s": {"median": 5}}


def test_a_declaration_is_plain_tables() -> None:
    assert set(Declaration.model_fields) == {
        "workload",
        "fleets",
        "baseline",
        "parts",
        "policies",
        "faults",
        "grid",
    }
