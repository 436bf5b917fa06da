from __future__ import annotations

import asyncio

from factories import make_task, make_trajectory
from muster import clock
from muster.journal import DropRow, Journal, LaunchRow, TrajectoryRow
from muster.orchestrator.dispatch import Dispatcher
from muster.rollout.spans import SpanRecorder
from muster.types import Launch, Trajectory

LAUNCH = Launch(id="g000000.0", group_id="g000000", task=make_task(), sibling=0)


class Slow:
    """An attempt takes ten seconds."""

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        await clock.sleep(10.0)
        return make_trajectory(launch)


async def start(journal: Journal) -> tuple[Dispatcher, asyncio.Task[Trajectory]]:
    dispatcher = Dispatcher(journal, Slow())
    task = asyncio.get_running_loop().create_task(dispatcher.run(LAUNCH, "train", 0))
    await clock.sleep(5.0)
    return dispatcher, task


def test_a_launch_that_is_cancelled_ends_at_once_as_a_drop_with_the_reason() -> None:
    async def main() -> tuple[list[DropRow], int]:
        journal = Journal.in_memory(meta={})
        dispatcher, task = await start(journal)
        dispatcher.cancel(LAUNCH.id, "too_stale")
        await asyncio.gather(task, return_exceptions=True)
        assert not dispatcher.stages()
        return journal.rows(DropRow), journal.count(LaunchRow)

    drops, launches = clock.run_virtual(main())
    assert drops == [DropRow(id=LAUNCH.id, reason="too_stale", at=5.0)]
    assert launches == 1


def test_one_that_has_ended_is_not_cancelled() -> None:
    async def main() -> tuple[int, int]:
        journal = Journal.in_memory(meta={})
        dispatcher, task = await start(journal)
        await task
        dispatcher.cancel(LAUNCH.id, "too_stale")
        return journal.count(TrajectoryRow), journal.count(DropRow)

    assert clock.run_virtual(main()) == (1, 0)


def test_a_stop_is_a_drop_of_its_own() -> None:
    async def main() -> str:
        journal = Journal.in_memory(meta={})
        _, task = await start(journal)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return journal.rows(DropRow)[0].reason

    assert clock.run_virtual(main()) == "stopped"
