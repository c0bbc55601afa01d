"""The semaphore that grows and shrinks."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.runner.slots import Slots


async def _waiting(slots: Slots) -> asyncio.Task[None]:
    task = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    return task


def test_first_come_first_served() -> None:
    async def work() -> None:
        slots, order = Slots(1), list[int]()

        async def one(number: int) -> None:
            async with slots.hold():
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(20)))
        assert order == list(range(20))
        assert slots.used == 0

    asyncio.run(work())


def test_nobody_enters_a_semaphore_of_size_zero_until_it_grows() -> None:
    async def work() -> None:
        slots = Slots()
        waiting = [await _waiting(slots) for _ in range(3)]
        assert not any(task.done() for task in waiting)
        slots.resize(2)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, True, False]
        slots.resize(3)
        await waiting[2]
        assert slots.used == 3

    asyncio.run(work())


def test_shrinking_takes_nothing_back_and_holds_until_enough_returned() -> None:
    async def work() -> None:
        slots = Slots(3)
        for _ in range(3):
            await slots.take()
        slots.resize(1)
        waiting = await _waiting(slots)
        for used in (2, 1):
            slots.give()
            await asyncio.sleep(0)
            assert (slots.used, waiting.done()) == (used, False)
        slots.give()
        await waiting
        assert slots.used == 1

    asyncio.run(work())


@pytest.mark.parametrize("then", ["nothing", "give", "grow"])
def test_a_waiter_that_is_cancelled_leaves_no_trace(then: str) -> None:
    """Also when a slot becomes free between the cancel and the moment the waiter learns of it."""

    async def work() -> None:
        slots = Slots(1)
        await slots.take()
        first, second = await _waiting(slots), await _waiting(slots)
        first.cancel()
        if then == "give":
            slots.give()
        if then == "grow":
            slots.resize(2)
        with pytest.raises(asyncio.CancelledError):
            await first
        if then == "nothing":
            slots.give()
        await asyncio.wait_for(second, 5)
        assert slots.used == (2 if then == "grow" else 1)

    asyncio.run(work())


def test_a_slot_given_to_a_waiter_that_is_cancelled_goes_to_the_next() -> None:
    async def work() -> None:
        slots = Slots(1)
        await slots.take()
        first, second = await _waiting(slots), await _waiting(slots)
        slots.give()  # it is first's now, who has not run yet
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 5)
        assert slots.used == 1

    asyncio.run(work())


STEP = st.one_of(
    st.just(("take", 0)),
    st.just(("give", 0)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("resize"), st.integers(0, 4)),
)


@given(st.lists(st.tuples(STEP, st.booleans()), max_size=40))
def test_whatever_happens_no_slot_is_lost_and_none_is_made(steps: list[tuple[tuple[str, int], bool]]) -> None:
    async def work() -> None:
        slots, tasks, held, size = Slots(1), list[asyncio.Task[None]](), 0, 1
        for (what, number), pause in steps:
            if what == "take":
                tasks.append(asyncio.create_task(slots.take()))
            elif what == "give" and held:
                held -= 1
                slots.give()
            elif what == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif what == "resize":
                size = number
                slots.resize(size)
            if pause:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                held += sum(task.done() and not task.cancelled() for task in tasks)
                tasks = [task for task in tasks if not task.done()]
        slots.resize(100)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert slots.used == held + results.count(None)

    asyncio.run(work())
