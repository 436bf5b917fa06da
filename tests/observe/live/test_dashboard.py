from __future__ import annotations

import io

import pytest
from rich.console import Console

from muster import clock
from muster.engine.port import EngineStatistics
from muster.journal import TrajectoryRow
from muster.observe.live.dashboard import Dashboard, PlainLog, capture
from muster.observe.live.frame import sparkline
from muster.observe.live.history import SLOW_S, History
from muster.orchestrator.status import PoolStatus, RunStatus
from muster.types import DeviceState, Verdict, Version
from observe.synthetic import SyntheticRun

ENGINE = EngineStatistics(
    replica="engine0",
    version=Version(number=6, digest="d6"),
    running=23,
    waiting=4,
    capacity=32,
    prompt_tokens=100_000,
    cached_tokens=91_000,
    recomputed_tokens=0,
    generated_tokens=50_000,
    kv_used_tokens=12_000,
    kv_capacity_tokens=20_000,
)


def status(run: SyntheticRun, **changes: object) -> RunStatus:
    values: dict[str, object] = {
        "run": "first-light",
        "started": run.now - 153.0,
        "step": 6,
        "steps": 40,
        "version": 6,
        "trainer_state": "batch_wait",
        "ready_groups": 3,
        "batch_groups": 8,
        "live_groups": 5,
        "stages": {"decode": 20, "tool": 9, "verify": 3, "sandbox_start": 2, "prefill": 3},
        "pool": PoolStatus(slots=48, live=37, warm=6),
        "engines": (ENGINE,),
        "tokens_per_s": 812.4,
        "eta_s": 500.0,
        "notice": "12 % of the last 64 trajectories failed by infrastructure",
    }
    return RunStatus(**(values | changes))  # type: ignore[arg-type]


def test_a_frame_shows_the_run_at_a_glance(run: SyntheticRun) -> None:
    shown = capture(status(run), run.journal, now=run.now)
    for text in (
        "muster first-light  step 6/40",
        "2:33, ETA 8:20",
        "trainer: waiting for a batch",
        "held out 60.0 % [50, 70] at v6 (+40.0 points since v0)",
        "live          37 in 5 groups",
        "success 36 46.2 %",
        "sandbox lost 1",
        "812, 91.0 %",
        "23 of 32, 4",
        "37/48, warm 6, waiting 0",
        "12 % of the last 64 trajectories failed by infrastructure",
    ):
        assert text in shown, text


@pytest.mark.parametrize("width", [100, 110, 160])
def test_a_frame_fits_forty_rows_and_its_width(run: SyntheticRun, width: int) -> None:
    lines = capture(status(run), run.journal, width=width, now=run.now).splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_gets_one_column(run: SyntheticRun, width: int) -> None:
    lines = capture(status(run), run.journal, width=width, now=run.now).splitlines()
    assert max(len(line) for line in lines) <= width
    assert "││" not in "\n".join(lines)


def test_the_first_frame_of_a_run_is_drawn_without_anything_to_show(killed: SyntheticRun) -> None:
    bare = RunStatus(
        run="new",
        started=0.0,
        step=0,
        steps=0,
        version=0,
        trainer_state="",
        ready_groups=0,
        batch_groups=0,
        live_groups=0,
    )
    assert "ETA –" in capture(bare, killed.journal, now=0.0)


def test_bars_are_as_long_as_their_ttb_and_lettered_by_cause(run: SyntheticRun) -> None:
    lines = [line for line in capture(status(run), run.journal, now=run.now).splitlines() if "waited" in line]
    bars = [line.split(" s ")[2].rstrip("│ ") for line in lines]
    assert max(len(b) for b in bars) == len(bars[1])
    assert "f" in bars[1]
    assert "i" in bars[3]


def test_each_row_is_read_once(run: SyntheticRun) -> None:
    history = History()
    history.refresh(run.journal, run.now, ("engine0", "trainer"))
    before = dict(history.outcomes)
    assert history.outcomes[Verdict.INFRA, "sandbox_lost"] == 1
    batches, rewards = list(history.batches), list(history.series["reward"])
    history.refresh(run.journal, run.now + SLOW_S, ("engine0", "trainer"))
    assert dict(history.outcomes) == before
    assert list(history.batches) == batches
    assert history.series["reward"] == rewards


def test_new_rows_are_taken_in(run: SyntheticRun) -> None:
    history = History()
    history.refresh(run.journal, run.now, ("trainer",))
    seen = sum(history.outcomes.values())
    run.step(6)
    history.refresh(run.journal, run.now + SLOW_S, ("trainer",))
    assert history.batches[-1].step == 6
    assert history.series["reward"][-1][0] == 6
    assert sum(history.outcomes.values()) == seen + run.journal.count(
        TrajectoryRow, "oldest_version = 6 AND purpose = 'train'"
    )


def test_a_device_that_reports_late_is_in_its_present_state_since(run: SyntheticRun) -> None:
    history = History()
    history.refresh(run.journal, run.now, ("trainer",))
    shares = history.device_shares("trainer", run.now + 50, DeviceState.BATCH_WAIT)
    assert shares[DeviceState.BATCH_WAIT] > 50 / 60
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_pipe_gets_one_line_a_step_one_an_evaluation_and_one_a_notice(run: SyntheticRun) -> None:
    console = Console(file=io.StringIO(), width=60)
    with Dashboard(console) as view:
        for _ in range(3):
            view.update(status(run), run.journal)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines] == ["notice", *["step"] * 6, "eval"]
    assert lines[6].startswith("step   6/40  reward 0.45  ttb ")
    assert "trainer waited" in lines[6]
    assert lines[7] == "eval    version 6  60.0 % [50.0, 70.0]  12 of 20 graded"


def test_markup_in_a_notice_is_printed_as_it_is(run: SyntheticRun) -> None:
    console = Console(file=io.StringIO(), width=60)
    PlainLog(console).update(status(run, notice="[red]not markup[/]"), run.journal)
    assert "[red]not markup[/]" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]not markup[/]" in capture(status(run, notice="[red]not markup[/]"), run.journal, now=run.now)


def test_a_terminal_is_redrawn_in_place(run: SyntheticRun) -> None:
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True)
    with Dashboard(console) as view:
        view.update(status(run, started=clock.now()), run.journal)
        view.update(status(run, step=7, started=clock.now()), run.journal)
    assert "7/40" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_sparkline_is_scaled_between_its_extremes() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5], 2) == "▁▁"
    assert sparkline([], 5) == ""
