"""The statistics of one experiment, timed; and synthetic experiments of known truth, where intervals must cover as promised.

    python bench/analysis.py [--cells 2000] [--arms 4] [--resamples 10000] [--experiments 400]

Prints one JSON line. Times are of the whole analysis on cells in memory, drawn by a fixed seed: once with every cell its own case,
once with five trials a case in forty worlds; `timed` are the statistics alone with every ratio and gate, `boards` the product's
leaderboard, and the scored table as a DataFrame and as Parquet (of 2000 rows). cpu_s is what stays comparable on a busy machine. Coverage is of 95% intervals, the
gate's rate that of a candidate worse by the margin exactly (5% wanted).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.boards import drawn, told

from eval_pipeline.analysis import stats
from eval_pipeline.analysis.frame import encoded, scored_frame
from eval_pipeline.analysis.leaderboard import leaderboard

Table = dict[str, dict[str, list[float]]]
"""arm -> case -> value of each trial"""


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    world: Mapping[str, str] | None
    scores: Table
    costs: Table
    latencies: Table


def draw(rng: np.random.Generator, cases: int, trials: int, worlds: int, shifts: list[float]) -> Synthetic:
    """Scores in quarters from a case's ease, which its world shares; arm i is better by shifts[i] on average."""
    names, tables = [f"k{i}" for i in range(cases)], [Table(), Table(), Table()]
    group = np.arange(cases) % worlds if worlds else np.arange(cases)
    ease = 0.5 + rng.uniform(-0.15, 0.15, group.max() + 1)[group] + rng.uniform(-0.1, 0.1, cases)
    size = rng.lognormal(0, 0.5, cases)
    for arm, shift in enumerate(shifts):
        drawn = (
            rng.binomial(4, np.clip(ease + shift, 0, 1)[:, None], (cases, trials)) / 4,
            size[:, None] * (1 + arm / 10) * rng.lognormal(0, 0.3, (cases, trials)),
            np.minimum(rng.lognormal(4, 0.8, (cases, trials)), 900),
        )
        for table, values in zip(tables, drawn, strict=True):
            table[f"a{arm}"] = dict(zip(names, values.tolist(), strict=True))
    world = {name: f"w{number}" for name, number in zip(names, group, strict=True)} if worlds else None
    return Synthetic(world=world, scores=tables[0], costs=tables[1], latencies=tables[2])


def means(table: Table) -> dict[str, dict[str, float]]:
    return {arm: {case: sum(values) / len(values) for case, values in cases.items()} for arm, cases in table.items()}


def analyse(made: Synthetic, resamples: int) -> dict[str, Any]:
    """Everything a leaderboard with a comparison of all arms needs."""
    rows = [(a, c, t, "ok", v) for a, cases in made.scores.items() for c, vs in cases.items() for t, v in enumerate(vs)]
    score, cost, latency = means(made.scores), means(made.costs), means(made.latencies)
    summary = stats.experiment_summary(rows, made.world)
    family = stats.contrasts(score, world=made.world)
    first, *others = score
    metrics = {arm: [score[arm], cost[arm], latency[arm]] for arm in score}
    return {
        "final": stats.provisional_reasons(summary) == [],
        "adjusted": stats.adjusted_means(score),
        "ranks": stats.rank_intervals(list(score), family),
        "gates": [stats.non_inferiority(score[first], score[arm], 0.05, made.world) for arm in others],
        "ratios": [stats.paired_log_ratio(x[first], x[arm], made.world) for x in (cost, latency) for arm in others],
        "front": stats.prob_on_front(metrics, ["max", "min", "min"], made.world, resamples),
        "per_arm": [per_arm(made, arm) for arm in score],
    }


def per_arm(made: Synthetic, arm: str) -> list[Any]:
    passed = {case: [float(v >= 0.5) for v in values] for case, values in made.scores[arm].items()}
    rows, cases = list(made.latencies[arm].values()), list(passed)
    cells = [(c, t, made.costs[arm][c][t], p) for c, values in passed.items() for t, p in enumerate(values)]
    timed = [stats.LatencyCell(case=c, latency_s=v, completed=v < 900) for c, vs in made.latencies[arm].items() for v in vs]
    trials, passes = [len(values) for values in passed.values()], [int(sum(values)) for values in passed.values()]
    clusters = stats.case_clusters(cases, made.world)
    return [
        stats.cost_per_solved(cells, world=made.world),
        stats.latency_summary(timed),
        [stats.quantile_ci(rows, q, clusters=clusters) for q in (0.5, 0.95)],
        stats.pass_k(trials, passes, len(rows[0]), clusters),
    ]


def timed(cases: int, trials: int, worlds: int, arms: int, resamples: int) -> dict[str, Any]:
    made = draw(np.random.default_rng(1), cases, trials, worlds, [0.02 * i for i in range(arms)])
    wall, cpu = time.perf_counter(), time.process_time()
    found = analyse(made, resamples)
    spent = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    return {"cases": cases, "trials": trials, "worlds": worlds, **spent, "ranks": found["ranks"]}


def board(cases: int, trials: int, worlds: int, arms: int, resamples: int) -> dict[str, Any]:
    """What people wait for: scored cells in memory -> leaderboard; and the table as a DataFrame, for 2000 rows."""
    truth = drawn(cases, trials, {f"a{i}": 0.4 + 0.05 * i for i in range(arms)}, worlds or cases)
    experiment, cells = told(truth, baseline="a0")
    wall, cpu = time.perf_counter(), time.process_time()
    leaderboard(experiment, cells, resamples=resamples)
    spent = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}
    scored_frame(cells[:1])  # loads pandas
    rows, wall = cells[:2000], time.perf_counter()
    frame = scored_frame(rows)
    framed, wall = time.perf_counter() - wall, time.perf_counter()
    encoded(frame, "parquet")
    written = time.perf_counter() - wall
    return {
        "cells": len(cells),
        "worlds": worlds,
        **spent,
        "rows": len(rows),
        "frame_s": round(framed, 3),
        "parquet_s": round(written, 3),
    }


def coverage(experiments: int) -> dict[str, float]:
    """36 cases in 12 worlds, 3 trials; the second arm is better by 5 points and costs 1.1 times as much."""
    rng, hits = np.random.default_rng(2), np.zeros(4)
    for _ in range(experiments):
        made = draw(rng, 36, 3, 12, [0.0, 0.05, -0.05])
        score, cost = means(made.scores), means(made.costs)
        arm = stats.arm_mean([(c, 0, v) for c, v in score["a0"].items()], made.world)
        difference = stats.paired_difference(score["a0"], score["a1"], made.world)
        ratio = stats.paired_log_ratio(cost["a0"], cost["a1"], made.world)
        gate = stats.non_inferiority(score["a0"], score["a2"], 0.05, made.world)
        ends = ((arm, 0.5), (difference, 0.05), (ratio, 1.1))
        hits[:3] += [(one.ci_lower or 0) <= truth <= (one.ci_upper or 0) for one, truth in ends]
        hits[3] += gate.non_inferior is True
    return dict(
        zip(("arm_mean", "difference", "cost_ratio", "gate_at_margin"), (hits / experiments).round(4).tolist(), strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000, help="cells an arm")
    parser.add_argument("--arms", type=int, default=4)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--experiments", type=int, default=400, help="synthetic experiments for the coverage")
    options = parser.parse_args()
    shapes = ((options.cells, 1, 0), (options.cells // 5, 5, 40))
    found = {
        "timed": [timed(*shape, options.arms, options.resamples) for shape in shapes],
        "boards": [board(*shape, options.arms, options.resamples) for shape in shapes],
        "coverage": coverage(options.experiments),
    }
    print(json.dumps({"bench": "analysis", "resamples": options.resamples, **found}))


if __name__ == "__main__":
    main()
