from __future__ import annotations

from eval_pipeline.cli.experiment_plan import time_line
from eval_pipeline.runner.estimate import TimeEstimate


def test_a_time_by_the_limits_is_no_bound_of_the_whole() -> None:
    of_limits, measured = (time_line(TimeEstimate(seconds=20.0, concurrency=64, at_most=most)) for most in (True, False))
    assert of_limits.startswith("time: agents run for at most about 20 s at 64 cells at a time; setting up")
    assert measured == "time: about 20 s at 64 cells at a time; judging and further attempts come on top"
