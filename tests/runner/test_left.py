"""What a persist worker could not have, it asks for again."""

from __future__ import annotations

from eval_pipeline.runner.persist_worker import Left


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_cell_is_left_for_a_while_and_after_every_try_for_longer() -> None:
    clock = Clock()
    left = Left(clock)
    paused: list[float] = []
    for _ in range(9):
        paused.append(left.leave("a"))
        clock.now_s += paused[-1] - 0.1
        assert left.keys() == ["a"]
        clock.now_s += 0.2
        assert left.keys() == [], "its time has come"
    assert paused == [5, 10, 20, 40, 80, 160, 320, 600, 600]


def test_what_was_brought_to_its_end_is_forgotten() -> None:
    clock = Clock()
    left = Left(clock)
    left.leave("b")
    left.leave("a")
    assert left.keys() == ["a", "b"]
    left.forget("a")
    assert (left.keys(), left.leave("a")) == (["b"], 5)
    clock.now_s += 10_000
    assert (left.keys(), left.leave("b")) == ([], 5), "somebody else has ended it long ago"
