"""The pool over the fake backend, on the virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster import clock
from muster.errors import SandboxStartError
from muster.lab.fakes.sandbox import FakeBackend, FakeFaults, FakeTiming
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Lane, Pool, Wanted
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits

Body = Callable[[Pool, FakeBackend, Snapshot], Awaitable[None]]
LIMITS = Limits()
FORK_S = 1.0


def on_pool(body: Body, *, faults: FakeFaults | None = None, **config: Any) -> None:
    async def main() -> None:
        backend = FakeBackend(FakeTiming(prepare_s=0, fork_s=FORK_S, close_s=0.1), faults)
        pool = Pool(backend, SandboxConfig(**{"slots": 2, "warm": 0, "verifier_slots": 1, **config}))
        await body(pool, backend, await backend.prepare(ImageSpec()))
        await pool.close()
        assert backend.live == 0
        agent = pool.statistics().agent
        assert (agent.live, agent.warm, agent.waiting, agent.closing) == (0, 0, 0, 0)

    clock.run_virtual(main())


def test_a_lease_says_how_long_it_waited_for_a_slot_and_for_its_fork() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async def use(label: str) -> tuple[float, float]:
            async with pool.lease(image, LIMITS, label) as lease:
                await clock.sleep(10)
                return lease.queued_s, lease.start_s

        waits = await asyncio.gather(use("one"), use("two"), use("three"))
        assert waits == [(0, FORK_S), (0, FORK_S), (pytest.approx(11.1), pytest.approx(FORK_S))]

    on_pool(body)


def test_slots_are_given_first_come_first_served() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        order: list[int] = []

        async def use(number: int) -> None:
            async with pool.lease(image, LIMITS, str(number)):
                order.append(number)
                await clock.sleep(1)

        await asyncio.gather(*(use(number) for number in range(6)))
        assert order == list(range(6))

    on_pool(body, slots=1)


def test_a_prefetched_fork_starts_at_once() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        pool.prefetch([Wanted(snapshot=image, limits=LIMITS)])
        await clock.sleep(5)
        assert pool.statistics().agent.warm == 1
        async with pool.lease(image, LIMITS, "one") as lease:
            assert lease.warm
            assert (lease.queued_s, lease.start_s) == (0, 0)
        async with pool.lease(image, LIMITS, "two") as lease:
            assert not lease.warm
        assert pool.statistics().warm_hits == 1

    on_pool(body, warm=2)


def test_a_warm_fork_that_died_is_replaced_on_hand_over() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        pool.prefetch([Wanted(snapshot=image, limits=LIMITS)])
        await clock.sleep(5)
        for sandbox in backend._live.values():  # pyright: ignore
            sandbox.lose()
        async with pool.lease(image, LIMITS, "one") as lease:
            assert not lease.warm
            assert (await lease.sandbox.run("echo hello", 1)).output == "hello\n"
        assert pool.statistics().warm_deaths == 1

    on_pool(body, warm=1)


def test_verification_does_not_wait_behind_agents() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async with (
            pool.lease(image, LIMITS, "agent"),
            pool.lease(image, LIMITS, "verifier", lane=Lane.VERIFIER) as lease,
        ):
            assert lease.queued_s == 0

    on_pool(body, slots=1)


def test_one_who_gives_up_waiting_costs_no_slot() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async def use(hold_s: float) -> None:
            async with pool.lease(image, LIMITS, "x"):
                await clock.sleep(hold_s)

        first = asyncio.ensure_future(use(10))
        await clock.sleep(2)
        second = asyncio.ensure_future(use(10))
        booting = asyncio.ensure_future(use(10))
        await clock.sleep(1)
        second.cancel()
        await first
        await clock.sleep(0.6)  # `booting` has its slot, and its fork is under way
        booting.cancel()
        await asyncio.gather(second, booting, return_exceptions=True)
        async with pool.lease(image, LIMITS, "last") as lease:
            assert lease.queued_s == 0

    on_pool(body, slots=1)


def test_a_fork_that_fails_gives_its_slot_back() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        pool.prefetch([Wanted(snapshot=image, limits=LIMITS)])
        for _ in range(3):
            with pytest.raises(SandboxStartError):
                async with pool.lease(image, LIMITS, "x"):
                    raise AssertionError("never started")
        assert pool.statistics().agent.live == 0

    on_pool(body, slots=1, warm=1, faults=FakeFaults(start_failure=1.0))


def test_memory_limits_together_hold_back_leases_and_one_that_never_fits_is_told_so() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async def use(memory_bytes: int) -> float:
            async with pool.lease(image, Limits(memory_bytes=memory_bytes), "x") as lease:
                await clock.sleep(10)
                return lease.queued_s

        waits = await asyncio.gather(use(60), use(60), use(40))
        assert waits == [0, pytest.approx(11.1), pytest.approx(11.1)]
        with pytest.raises(SandboxStartError, match=r"raise sandbox\.pool_memory_bytes \(100\)"):
            await use(101)

    on_pool(body, slots=9, pool_memory_bytes=100)


def test_starts_are_spread_to_the_boot_rate() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async def use() -> float:
            async with pool.lease(image, LIMITS, "x") as lease:
                return lease.queued_s

        assert await asyncio.gather(use(), use(), use()) == [0, pytest.approx(0.5), pytest.approx(1.0)]

    on_pool(body, slots=9, boots_per_s=2.0)


# --- taking turns ---------------------------------------------------------------------------------------


async def work(pool: Pool, image: Snapshot, label: str, turns: int) -> tuple[float, str]:
    """`turns` commands of ten seconds each; when it ended, and what its files and shell say."""
    async with pool.lease(image, LIMITS, label) as lease:
        await lease.sandbox.run(f"export NAME={label}; echo {label} > mine", 60)
        for _ in range(turns):
            await lease.sandbox.run("sleep 10", 60)
            if lease.should_give_way:
                await lease.give_way()
        said = await lease.sandbox.run("cat mine; echo $NAME", 60)
        return clock.now(), said.output


def test_long_ones_give_way_and_go_on_as_they_were() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        ends = await asyncio.gather(
            work(pool, image, "long", 30), work(pool, image, "long2", 30), work(pool, image, "short", 2)
        )
        assert [said.split() for _, said in ends] == [["long", "long"], ["long2", "long2"], ["short", "short"]]
        assert ends[2][0] < 120 < ends[0][0], "the short one did not wait for a long one's end"
        assert pool.statistics().pauses > 0

    on_pool(body, slice_s=30)


def test_without_slices_nobody_gives_way() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        ends = await asyncio.gather(*(work(pool, image, name, 30) for name in ("one", "two", "three")))
        assert ends[2][0] > 2 * ends[0][0]
        assert pool.statistics().pauses == 0

    on_pool(body)


def test_one_that_is_cancelled_while_others_have_its_place_holds_nothing() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        tasks = [asyncio.ensure_future(work(pool, image, str(n), 30)) for n in range(6)]
        await clock.sleep(200)
        assert pool.statistics().agent.waiting > 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_pool(body, slice_s=30)


def test_what_the_agent_would_notice_is_not_paused() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        async def busy() -> bool:
            async with pool.lease(image, LIMITS, "busy") as lease:
                await lease.sandbox.run("sleep 100 &", 60)
                await lease.sandbox.run("sleep 50", 60)
                assert lease.should_give_way
                return await lease.give_way()

        async def other() -> None:
            async with pool.lease(image, LIMITS, "other"):
                pass

        paused, _ = await asyncio.gather(busy(), other())
        assert not paused

    on_pool(body, slots=1, slice_s=30)


def test_of_what_comes_next_only_the_beginning_is_read() -> None:
    async def body(pool: Pool, backend: FakeBackend, image: Snapshot) -> None:
        pool.prefetch(itertools.repeat(Wanted(snapshot=image, limits=LIMITS)))
        await clock.sleep(2 * FORK_S)
        assert pool.statistics().agent.warm == 1

    on_pool(body, warm=1)
