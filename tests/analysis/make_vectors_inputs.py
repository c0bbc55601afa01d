"""The inputs of vectors_compare.json; what they must give comes from make_vectors_compare.py."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import make_vectors_compare as of
from make_vectors import NUMERIC, Record

Add = Callable[..., None]
QUADRATURE = {"abs": 1e-5, "rel": 1e-5}
"""of t's density with few degrees of freedom"""


def inputs(add: Add, rng: random.Random) -> None:
    comparisons(add, rng)
    ratios(add, rng)
    trials_and_costs(add, rng)
    front(add, rng)
    judges(add)
    planning(add)


def comparisons(add: Add, rng: random.Random) -> None:
    worlds = {f"k{i}": f"w{min(rng.randint(1, 6), rng.randint(1, 6))}" for i in range(14)}
    wide = [-1.0, 1.0]
    for world, score_range, n, lost in (
        (None, [0, 1], 11, 2),
        (worlds, wide, 14, 0),
        (worlds, [0, 1], 14, 3),
        (None, wide, 9, 0),
    ):
        low, high = score_range
        a: of.Means = {f"k{i}": round(rng.uniform(low, high), 2) for i in range(n)}
        b: of.Means = {c: round(min(max((v or 0) + rng.gauss(0.05, 0.1), low), high), 2) for c, v in a.items()}
        for i in range(lost):
            (a if i % 2 else b)[f"k{i}"] = None
        given: Record = {"a": a, "b": b, "world": world, "alpha": 0.1 if n == 9 else 0.05, "score_range": score_range}
        add(3, "paired_difference", given, of.paired(**given), "full matrices, every sign vector", QUADRATURE)
        given = {**given, "margin": 0.15 * (high - low)}
        add(3, "non_inferiority", given, of.inferiority(**given), "one more weighted observation", QUADRATURE)
    few_a: of.Means = {f"k{i}": float(i > 2) for i in range(12)}
    few_b: of.Means = {c: 1.0 if c in ("k0", "k1") else v for c, v in few_a.items()}
    given = {"a": few_a, "b": few_b, "world": None, "alpha": 0.05, "score_range": [0, 1]}
    add(3, "paired_difference", given, of.paired(**given), "full matrices, every sign vector", NUMERIC)
    none = {"a": {"k": 0.1, "l": None}, "b": {"k": None, "l": 0.2}, "world": None, "alpha": 0.05}
    empty = dict.fromkeys(("diff", "se", "df", "p", "lower", "non_inferior", "n_discordant", "diff_guarded"))
    expected = {**empty, "n_shared": 0, "n_missing": 2, "flags": ["no_shared_cases"]}
    add(3, "non_inferiority", {**none, "margin": 0.1}, expected, "definition")
    add(3, "holm", {"p": [0.01, None, 0.01, 0.9, 0.5]}, {"p_adj": [0.04, None, 0.04, 1.0, 1.0]}, "by hand")


def ratios(add: Add, rng: random.Random) -> None:
    worlds = {f"k{i}": f"w{i % 4}" for i in range(10)}
    for world in (None, worlds):
        a = {f"k{i}": round(rng.lognormvariate(0, 0.8), 3) for i in range(10)}
        b = {c: round(v * rng.lognormvariate(-0.2, 0.5), 3) for c, v in a.items()} | {"k0": 0}
        given: Record = {"a": a, "b": b, "world": world, "alpha": 0.05}
        add(3, "paired_log_ratio", given, of.log_ratio(**given), "leave-one-out ratios as fractions", NUMERIC)
    nothing = {"p": None, "ci_lower": None, "ci_upper": None, "se_log": None}
    flat = {"k0": 1.0, "k1": 1.0, "k2": 2.0}
    edges: list[tuple[Record, Record]] = [
        ({"b": dict.fromkeys(flat, 0.0)}, {"ratio": 0.0, "flags": ["zero_cost"]}),
        ({"b": {"k0": 0.0, "k1": 0.0, "k2": 2.0}}, {"ratio": 0.5, "flags": ["one_cluster_carries_all"]}),
        ({"b": {"k9": 1.0}}, {"n_shared": 0, "ratio": None, "flags": ["no_shared_cases"]}),
        ({"b": {c: 3 * v for c, v in flat.items()}}, {"ratio": 3.0, "se_log": 0.0, "flags": ["zero_variance", "few_clusters"]}),
        ({"b": dict(flat), "world": dict.fromkeys(flat, "w")}, {"ratio": 1.0, "flags": ["one_cluster"]}),
    ]
    for change, expected in edges:
        given = {"a": flat, "world": None, "alpha": 0.05, **change}
        add(3, "paired_log_ratio", given, {**nothing, **expected}, "definition")
    late = {"a": flat, "b": {"k0": 0.5, "k1": 1.0, "k2": 2.0}, "world": None}
    for timeouts, bound in (({"a": 1, "b": 0}, "upper"), ({"a": 2, "b": 1}, "restricted"), ({"a": 0, "b": 0}, None)):
        flags = ["few_clusters", *(["censored"] if bound else [])]
        add(3, "paired_log_ratio", {**late, "timeouts": timeouts}, {"ratio": 0.875, "bound": bound, "flags": flags}, "definition")
    limits = [{"k0": 9, "k1": 9, "k2": 9}, {"k0": 9, "k1": 9, "k2": 8}]
    unequal = {**nothing, "ratio": None, "flags": ["unequal_limits"]}
    add(3, "paired_log_ratio", {**late, "timeouts": {"a": 1, "b": 0}, "limits": limits}, unequal, "definition")


def trials_and_costs(add: Add, rng: random.Random) -> None:
    given: Record = {"n": [5, 4, 5, 2, 6, 5], "c": [5, 1, 3, 2, 0, 4], "k": 3, "alpha": 0.1}
    given["clusters"] = ["v", "v", "w", "w", "x", "y"]
    add(4, "pass_k", given, of.pass_subsets(**given), "every subset of trials", NUMERIC)
    for q in (0.5, 0.8):
        matrix = [[round(rng.expovariate(0.05), 1) for _ in range(rng.randint(1, 4))] for _ in range(15)]
        holed: list[list[float | None]] = [[*row, None] if i % 4 == 0 else [*row] for i, row in enumerate(matrix)]
        given = {"matrix": holed, "q": q, "alpha": 0.05}
        add(5, "quantile_ci", given, of.woodruff(**given), "copies in equal shares", NUMERIC)
    cells: list[list[Any]] = [
        [f"k{i}", t, round(rng.lognormvariate(-1, 0.5), 3), int(rng.random() < 0.6)] for i in range(8) for t in range(2)
    ]
    cells[3][2], cells[6][3] = None, None
    world = {f"k{i}": f"w{i // 3}" for i in range(8)}
    given = {"cells": cells, "alpha": 0.05, "world": world}
    counts = {"n_unpriced": 1, "overhead_cost_infra": cells[6][2], "n_cases": 8}
    add(5, "cost_per_solved", given, {**of.solved(**given), **counts}, "numeric gradient, full matrices", NUMERIC)
    prices = {"input": "2.5", "cache_read": "0.25", "cache_write_5m": "3", "cache_write_1h": "5", "output": "10.01"}
    usage: Record = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 30, "output_tokens": 11}
    usage["cache_creation"] = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
    parts = {"input": 7, "cache_read": 90, "cache_write_5m": 10, "cache_write_1h": 20, "output": 11}
    cost = sum((Decimal(prices[name]) * count for name, count in parts.items()), Decimal(0)) / 10**6
    given = {"usage": usage, "provider_convention": "anthropic", "price_usd_per_mtok": prices}
    cold = cost + (Decimal("2.5") - Decimal("0.25")) * 90 / 10**6
    expected = {"tokens": parts, "cost_usd": float(cost), "cold_cost_usd": float(cold), "cache_share": 90 / 127}
    add(5, "call_cost", given, expected, "decimals by hand")
    nested = {"prompt_tokens": 100, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 40}}
    nested["completion_tokens_details"] = {"reasoning_tokens": 25}
    given = {"usage": nested, "provider_convention": "openai", "price_usd_per_mtok": {**prices, "cache_read": None}}
    parts = {"input": 60, "cache_read": 40, "cache_write_5m": 0, "cache_write_1h": 0, "output": 30}
    add(5, "call_cost", given, {"tokens": parts, "cost_usd": None, "cold_cost_usd": 0.0005503, "cache_share": 0.4}, "by hand")


def front(add: Add, rng: random.Random) -> None:
    given: Record = {"arms": [[0.5, 1], [0.9, None], [0.5, "inf"], [0.7, "inf"]], "directions": ["max", "min"]}
    given["arms"] = [[math.inf if value == "inf" else value for value in arm] for arm in given["arms"]]
    add(6, "pareto_front", given, {"front": [0, 3]}, "by hand")
    world = {f"k{i}": f"w{min(i, 4)}" for i in range(7)}
    arms = {
        arm: [{c: round(rng.uniform(0.2 * i, 1), 1 if j else 2) for c in world} for j in range(3)]
        for i, arm in enumerate(("x", "y", "z"))
    }
    given = {"case_values": arms, "directions": ["max", "min", "min"], "world": world}
    add(6, "prob_on_front", given, of.front_shares(arms, world), "every resample of worlds", {"abs": 0.02, "rel": 0})


def judges(add: Add) -> None:
    ratings: list[list[float | None]] = [[1, 2, None, 4, 2, None], [1, 3, 3, 4, None, 5], [2, 2, 3, None, 2, None]]
    expected = {
        "nominal": of.alpha_pairs(ratings, lambda x, y: float(x != y)),
        "interval": of.alpha_pairs(ratings, lambda x, y: (x - y) ** 2),
    }
    add(7, "krippendorff_alpha", {"ratings": ratings}, expected, "every pair of ratings")
    weak = {"judge_rate": 0.5, "n": 100, "tp": 60, "n_pos": 100, "tn": 65, "n_neg": 100}
    add(7, "rogan_gladen", weak, {"raw": None, "estimate": None, "youden": 0.25, "flags": ["judge_too_weak"]}, "definition")
    unlabelled = {"judge_rate": 0.5, "n": 100, "tp": 0, "n_pos": 0, "tn": 65, "n_neg": 100}
    add(7, "rogan_gladen", unlabelled, {"estimate": None, "youden": None, "flags": ["no_labels"]}, "definition")
    human, said = [1, 0, 1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 1, 1, 1]
    alone = statistics.fmean(human), math.sqrt(statistics.pvariance(human) / 8)
    reach = of.t_quantile(0.975, 7) * alone[1]
    expected = {"lam": 0.0, "estimate": alone[0], "se": alone[1], "ci_lower": alone[0] - reach, "ci_upper": alone[0] + reach}
    given: Record = {"human": human, "judge_labelled": said, "judge_unlabelled": [], "reference": "auto"}
    add(7, "ppi_mean", given, expected, "the labels alone, t with 7", NUMERIC)
    add(
        7,
        "aggregate_votes",
        {"votes": [1, 0, 1, 0, "abstain"]},
        {"verdict": 0.5, "agreement": 1 / 3, "flag": "tie"},
        "2 of 6 pairs",
    )


def planning(add: Add) -> None:
    published = {2: (2.178, 1.977), 3: (2.289, 2.004), 4: (2.361, 2.024), 10: (2.555, 2.087)}
    for looks, (pocock, last) in published.items():
        expected = {"pocock_z": [pocock] * looks, "obf_z": [last * math.sqrt(looks / k) for k in range(1, looks + 1)]}
        source = "Jennison and Turnbull (2000), tables 2.1 and 2.3"
        add(3, "group_sequential_boundaries", {"looks": looks}, expected, source, {"abs": 0.002, "rel": 0})
    given: Record = {"cost_per_case": 3.0, "cost_per_trial": 1.0, "sigma2": 0.2, "omega2": 0.0, "max_trials": 9}
    add(3, "optimal_trials", given, {"r_continuous": "inf", "r_best": 9}, "more trials share the case's cost")
    given = {"cost_per_case": 0.0, "cost_per_trial": 1.0, "sigma2": 0.2, "omega2": 0.1, "min_trials": 4}
    add(3, "optimal_trials", given, {"r_continuous": 0.0, "r_best": 4}, "the least that pass^4 allows")
