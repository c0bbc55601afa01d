"""What comes while a thread is at work is worked on next, all together, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from eval_pipeline.runner.together import Together


def test_what_comes_meanwhile_is_worked_on_together() -> None:
    batches: list[list[int]] = []
    go = threading.Event()

    def work(items: list[int]) -> list[int]:
        batches.append(items)
        go.wait(10)
        return [item * 10 for item in items]

    async def main() -> list[int]:
        together = Together(work)
        first = together.ask(1)
        while not batches:
            await asyncio.sleep(0.001)
        later = [together.ask(item) for item in (2, 3, 4)]
        go.set()
        return [await first, *[await one for one in later]]

    assert asyncio.run(main()) == [10, 20, 30, 40]
    assert batches == [[1], [2, 3, 4]]


def test_what_fails_is_raised_to_all_of_them_and_the_next_go_on() -> None:
    def work(items: list[int]) -> list[int]:
        if 2 in items:
            raise ValueError("two")
        return items

    async def main() -> int:
        together = Together(work)
        for one in [together.ask(1), together.ask(2)]:
            with pytest.raises(ValueError, match="two"):
                await one
        return await together.ask(3)

    assert asyncio.run(main()) == 3


def test_what_nobody_waits_for_any_more_is_done_before_it_closes() -> None:
    done: list[int] = []

    async def main() -> None:
        def work(items: list[int]) -> list[int]:
            done.extend(items)
            return items

        together = Together(work)
        together.ask(1).cancel()
        await together.close()

    asyncio.run(main())
    assert done == [1]
