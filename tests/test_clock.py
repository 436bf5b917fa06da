from __future__ import annotations

import asyncio

import pytest

from muster import clock


def test_virtual_time_starts_at_zero_and_jumps() -> None:
    async def main() -> tuple[float, float]:
        before = clock.now()
        await clock.sleep(3600)
        return before, clock.now()

    assert clock.run_virtual(main()) == (0.0, 3600.0)


def test_timers_fire_in_order_of_their_time() -> None:
    order: list[int] = []

    async def wait(delay: int) -> None:
        await clock.sleep(delay)
        order.append(delay)

    async def main() -> None:
        await asyncio.gather(*(wait(d) for d in (3, 1, 2)))

    clock.run_virtual(main())
    assert order == [1, 2, 3]


def test_a_timeout_ends_a_long_wait_at_its_limit() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with clock.timeout(5):
                await clock.sleep(50)
        return clock.now()

    assert clock.run_virtual(main()) == 5.0


def test_waiting_for_nothing_is_a_deadlock_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(clock.Deadlock):
        clock.run_virtual(main())


def test_real_time_is_seconds_since_the_epoch() -> None:
    async def main() -> float:
        return clock.now()

    inside = clock.run(main())
    assert 1.7e9 < inside <= clock.now()


def test_a_set_of_tasks_has_the_order_of_their_making_on_a_virtual_loop() -> None:
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(index: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(index)

        async def fail() -> None:
            raise ValueError

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:  # cancels the others, which it holds in a set
                for index in range(50):
                    tasks.create_task(wait(index))
                await clock.sleep(1.0)
                tasks.create_task(fail())
        return ended

    assert clock.run_virtual(main()) == [*range(50)]
