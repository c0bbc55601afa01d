"""Write vectors.json from first principles: fractions, full matrices, enumeration, quadrature and bisection.

python tests/analysis/make_vectors.py > tests/analysis/vectors.json

Nothing of the product is imported, and no formula of it is used where a definition can be computed directly.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Record = dict[str, Any]
TIGHT = {"abs": 1e-9, "rel": 1e-9}
NUMERIC = {"abs": 1e-7, "rel": 1e-7}


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """The root of a rising function."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def integral(f: Callable[[float], float], low: float, high: float, steps: int = 4000) -> float:
    width = (high - low) / steps
    inner = sum((4 if i % 2 else 2) * f(low + i * width) for i in range(1, steps))
    return (f(low) + inner + f(high)) * width / 3


def t_quantile(q: float, df: float) -> float:
    """The CDF by quadrature over the angle atan(x / sqrt(df)), where the density is a power of the cosine."""
    whole = integral(lambda a: math.cos(a) ** (df - 1), 0, math.pi / 2 - 1e-12)
    angle = bisect(lambda a: integral(lambda b: math.cos(b) ** (df - 1), 0, a, 400) / whole / 2 + 0.5 - q, 0, math.pi / 2 - 1e-9)
    return math.tan(angle) * math.sqrt(df)


def beta_quantile(q: float, a: float, b: float) -> float:
    """Over x = sin(v)^2, which removes the poles at the ends."""

    def density(v: float) -> float:
        return math.sin(v) ** (2 * a - 1) * math.cos(v) ** (2 * b - 1)

    whole = integral(density, 1e-12, math.pi / 2 - 1e-12)
    angle = bisect(lambda v: integral(density, 1e-12, v, 2000) / whole - q, 1e-9, math.pi / 2 - 1e-9)
    return math.sin(angle) ** 2


def wilson(u: float, n: float, t: float) -> tuple[float, float]:
    """Where the score test's statistic equals t, on both sides of u."""
    lower = bisect(lambda p: t * math.sqrt(p * (1 - p) / n) - (u - p), 0, u) if u > 0 else 0.0
    upper = bisect(lambda p: (p - u) - t * math.sqrt(p * (1 - p) / n), u, 1) if u < 1 else 1.0
    return lower, upper


def cr2_full(values: Sequence[float], labels: Sequence[Any]) -> tuple[float, float]:
    """CR2 and its Satterthwaite df from the whole hat matrix and symmetric square roots."""
    y, n = np.array(values, dtype=float), len(values)
    x = np.ones((n, 1))
    bread = np.linalg.inv(x.T @ x)
    hat = x @ bread @ x.T
    residual_maker = np.eye(n) - hat
    residuals, variance = residual_maker @ y, 0.0
    columns: list[list[float]] = []
    for label in dict.fromkeys(labels):
        rows = [i for i, other in enumerate(labels) if other == label]
        eigenvalues, vectors = np.linalg.eigh(np.eye(len(rows)) - hat[np.ix_(rows, rows)])
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        weights = (bread @ x[rows].T @ root).ravel()
        variance += float(weights @ residuals[rows]) ** 2
        columns.append((residual_maker[:, rows] @ weights).tolist())
    gram = np.array(columns) @ np.array(columns).T
    return math.sqrt(variance), float(np.trace(gram) ** 2 / np.sum(gram**2))


def clip(value: Fraction) -> Fraction:
    return min(max(value, Fraction(0)), Fraction(1))


def score_units(criteria: Sequence[Record], policy: str) -> Record:
    """Each criterion as `cap` ordinary ones; the bounds over every completion of what is missing."""
    caps = [c.get("cap", 5) if c.get("per_occurrence") else 1 for c in criteria]
    units = [(Fraction(str(c["weight"])), index) for index, c in enumerate(criteria) for _ in range(caps[index])]
    options = [
        [Fraction(str(min(c["verdict"], cap)))] if c["verdict"] is not None else [Fraction(k) for k in range(cap + 1)]
        for c, cap in zip(criteria, caps, strict=True)
    ]
    total = sum((w for w, _ in units if w > 0), Fraction(0))
    worst = sum((w for w, _ in units if w < 0), Fraction(0))

    def value(counts: Sequence[Fraction], kind: str) -> Fraction:
        points = sum((Fraction(str(c["weight"])) * k for c, k in zip(criteria, counts, strict=True)), Fraction(0))
        if kind == "all_pass":
            return Fraction(all(k == (cap if c["weight"] > 0 else 0) for c, cap, k in zip(criteria, caps, counts, strict=True)))
        kinds = {"raw": points / total, "clip_cell": clip(points / total), "minmax": (points - worst) / (total - worst)}
        return kinds[kind]

    completions = [value(counts, policy) for counts in itertools.product(*options)]
    known = next(itertools.product(*options)) if all(len(o) == 1 for o in options) else None
    found = {"lower": float(min(completions)), "upper": float(max(completions))}
    kinds = {"raw": "raw", "score": policy, "minmax": "minmax"}
    return found | {name: None if known is None else float(value(known, kind)) for name, kind in kinds.items()}


def arm(cells: Sequence[Sequence[Any]], world: dict[str, str] | None, score_range: Sequence[float], alpha: float) -> Record:
    cases: dict[str, list[Any]] = {}
    for case, _, value in cells:
        cases.setdefault(case, []).append(value)
    exact = {c: [Fraction(str(v)) for v in vs if v is not None] for c, vs in cases.items()}
    means = {c: sum(vs) / len(vs) for c, vs in exact.items() if vs}
    bounds = [
        float(sum(sum(Fraction(str(fill if v is None else v)) for v in vs) / len(vs) for vs in cases.values()) / len(cases))
        for fill in score_range
    ]
    low, high = score_range
    values = [float(m) for m in means.values()]
    mean = float(sum(means.values()) / len(means))
    se, df = cr2_full(values, [world[c] if world else c for c in means])
    u, t = (mean - low) / (high - low), t_quantile(1 - alpha / 2, df)
    n_eff = u * (1 - u) / (se / (high - low)) ** 2
    lower, upper = (low + bound * (high - low) for bound in wilson(u, n_eff, t))
    return {
        "n_cases_planned": len(cases),
        "n_cases": len(means),
        "n_cells_planned": len(cells),
        "n_cells": sum(len(vs) for vs in exact.values()),
        "bound_lower": bounds[0],
        "bound_upper": bounds[1],
        "mean": mean,
        "se": se,
        "df": df,
        "n_eff": n_eff,
        "t_lower": mean - t * se,
        "t_upper": mean + t * se,
        "ci_lower": lower,
        "ci_upper": upper,
        "flags": ["few_clusters"] if df < 4 - 1e-9 else [],
    }


def adjusted(case_means: dict[str, dict[str, float | None]]) -> Record:
    """Least squares on the full design of arm and case dummies."""
    cases = list(dict.fromkeys(case for means in case_means.values() for case in means))
    rows = [(a, c, m) for a, means in case_means.items() for c, m in means.items() if m is not None]
    arms = list(case_means)
    design = np.array([[a == x for x in arms] + [c == x for x in cases[1:]] for a, c, _ in rows], dtype=float)
    solution = np.linalg.lstsq(design, np.array([m for _, _, m in rows]), rcond=None)[0]
    common = [c for c in cases if all(case_means[a].get(c) is not None for a in arms)]
    shift = float(np.sum(solution[len(arms) :])) / len(cases)
    return {
        "available": {a: statistics.fmean(m for m in case_means[a].values() if m is not None) for a in arms},
        "common": {a: statistics.fmean(case_means[a][c] or 0.0 for c in common) for a in arms},
        "n_common": len(common),
        "ls_means": {a: float(solution[i]) + shift for i, a in enumerate(arms)},
    }


def redistributed(time: Sequence[float], completed: Sequence[int]) -> Record:
    """Censored weight is handed on to everything later (Efron 1967): the product-limit estimate without its product."""
    order = sorted(zip(time, completed, strict=True), key=lambda pair: (pair[0], -pair[1]))
    mass = [Fraction(1, len(order))] * len(order)
    for i, (_, done) in enumerate(order):
        later = len(order) - i - 1
        if not done and later:
            mass = [m if j < i else Fraction(0) if j == i else m + mass[i] / later for j, m in enumerate(mass)]
    events: dict[float, Fraction] = {}
    for (moment, done), m in zip(order, mass, strict=True):
        if done:
            events[moment] = events.get(moment, Fraction(0)) + m
    tau = max(time)

    def quantile(q: Fraction) -> float | str:
        reached = [m for m in sorted(events) if sum(events[e] for e in events if e <= m) >= q]
        return reached[0] if reached else "inf"

    rest = 1 - sum(events.values())
    return {
        **{f"q{level}": quantile(Fraction(level, 100)) for level in (50, 90, 95)},
        "rmst": float(sum(Fraction(str(m)) * w for m, w in events.items()) + Fraction(str(tau)) * rest),
        "tau": tau,
        "censored_rate": 1 - sum(completed) / len(completed),
    }


def binomial_tail(k: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def proportion(k: int, n: int, alpha: float) -> Record:
    z = statistics.NormalDist().inv_cdf(1 - alpha / 2)
    return {
        "wilson": list(wilson(k / n, n, z)),
        "clopper_pearson": [
            bisect(lambda p: binomial_tail(k, n, p) - alpha / 2, 0, 1) if k else 0.0,
            bisect(lambda p: alpha / 2 - (1 - binomial_tail(k + 1, n, p)), 0, 1) if k < n else 1.0,
        ],
        "jeffreys": [beta_quantile(q, k + 0.5, n - k + 0.5) for q in (alpha / 2, 1 - alpha / 2)],
    }


def clustered(clusters: Sequence[Sequence[float]]) -> Record:
    y = [v for cluster in clusters for v in cluster]
    mean, groups = statistics.fmean(y), len(clusters)
    meat = sum((a - mean) * (b - mean) for cluster in clusters for a in cluster for b in cluster)
    se, df = cr2_full(y, [index for index, cluster in enumerate(clusters) for _ in cluster])
    return {
        "mean": mean,
        "se_naive": statistics.stdev(y) / math.sqrt(len(y)),
        "se_cr0_miller": math.sqrt(meat) / len(y),
        "se_cr1": math.sqrt(meat * groups / (groups - 1)) / len(y),
        "se_cr2": se,
        "df_bm": df,
    }


def fixed(matrix: Sequence[Sequence[float]]) -> Record:
    r, n = len(matrix[0]), len(matrix)
    within = statistics.fmean(statistics.variance(row) for row in matrix)
    between = r * statistics.variance([statistics.fmean(row) for row in matrix])
    noise = sum(statistics.variance(row) / r for row in matrix)
    return {"se": math.sqrt(noise) / n, "icc": (between - within) / (between + (r - 1) * within)}


def exhaustive_bootstrap(values: Sequence[float]) -> Record:
    means = sorted(statistics.fmean(drawn) for drawn in itertools.product(values, repeat=len(values)))
    lower, upper = (means[round(q * (len(means) - 1))] for q in (0.025, 0.975))
    return {"se": statistics.pstdev(means), "pct_lower": lower, "pct_upper": upper}


def strict(mean: float, n_eff: float, df: float, alpha: float) -> Record:
    q = 1 - alpha / 2
    n = n_eff * (statistics.NormalDist().inv_cdf(q) / t_quantile(q, df)) ** 2
    lower, upper = beta_quantile(1 - q, n * mean, n * (1 - mean) + 1), beta_quantile(q, n * mean + 1, n * (1 - mean))
    return {"ci_lower": lower, "ci_upper": upper}


def vectors() -> list[Record]:
    rng, made = random.Random(20), list[Record]()

    def add(section: int, function: str, given: Record, expected: Record, source: str, tol: Record = TIGHT) -> None:
        name = f"{function}_{sum(v['function'] == function for v in made)}"
        made.append(
            {
                "id": name,
                "section": section,
                "function": function,
                "input": given,
                "expected": expected,
                "tol": tol,
                "source": source,
            }
        )

    for index, policy in enumerate(("clip_cell", "raw", "minmax", "all_pass") * 3):
        criteria: list[Record] = [{"id": "first", "weight": rng.randint(2, 6), "verdict": rng.choice([0, 1, 0.5])}]
        for position in range(rng.randint(1, 3)):
            counted = rng.random() < 0.5
            verdict = rng.choice([0, 1, 2, 7]) if counted else rng.choice([0, 1])
            extra = {"per_occurrence": True, "cap": rng.randint(1, 4)} if counted else {}
            missing = index % 3 == 2 and position == 0
            weight = rng.choice([-3, -1, 1.5, 2])
            criteria.append({"id": f"c{position}", "weight": weight, "verdict": None if missing else verdict, **extra})
        add(
            1,
            "score_cell",
            {"criteria": criteria, "policy": policy},
            score_units(criteria, policy),
            "unit criteria, every completion",
        )
    add(1, "pass_cell", {"score": 0.1 + 0.2, "threshold": 0.3, "critical_ok": [True]}, {"passed": True}, "definition")
    add(1, "pass_cell", {"score": 0.2, "threshold": 0.3, "critical_ok": [None]}, {"passed": None}, "definition")
    add(1, "median_count", {"votes": [3, None, -1, 9, "many"], "cap": 5}, {"verdict": 4.0}, "median of 3 and 5")
    add(1, "median_count", {"votes": ["many", -2], "cap": 5}, {"verdict": None}, "no valid vote")
    add(
        1,
        "healthbench_aggregate",
        {"case_scores": [-1.5, 0.25, 2.0]},
        {"mean_unclipped": 0.25, "score": 0.25, "mean_of_clipped": 1.25 / 3},
        "definition",
    )
    means = {
        "A": {"p": 0.3, "q": 0.9, "r": None, "s": 0.4},
        "B": {"p": None, "q": 0.7, "r": 0.2, "s": 0.6},
        "C": {"p": 0.8, "q": 0.75, "r": 0.1, "s": None},
    }
    add(1, "adjusted_means", {"case_means": means}, adjusted(means), "least squares on all dummies")
    for n, trials, worlds, score_range in ((6, 3, 0, (0, 1)), (9, 2, 4, (0, 1)), (12, 1, 5, (-0.5, 1)), (30, 2, 0, (0, 1))):
        low, high = score_range
        cells = [
            [f"k{c}", t, None if rng.random() < 0.1 and t else round(rng.uniform(low, high), 3)]
            for c in range(n)
            for t in range(trials)
        ]
        world = {f"k{c}": f"w{min(rng.randint(1, worlds), rng.randint(1, worlds))}" for c in range(n)} if worlds else None
        given: Record = {"cells": cells, "world": world, "score_range": list(score_range), "alpha": 0.1 if n == 9 else 0.05}
        add(2, "arm_mean", given, arm(cells, world, score_range, given["alpha"]), "full matrices, bisected score test", NUMERIC)
    for k, n in ((0, 7), (3, 11), (40, 41), (5, 5)):
        add(2, "proportion_ci", {"k": k, "n": n, "alpha": 0.05}, proportion(k, n, 0.05), "tails, quadrature, bisection", NUMERIC)
    clusters = [[1, 0.5, 0], [0], [1, 1], [0.25, 0.75, 1, 1]]
    add(2, "se_clustered_cells", {"clusters": clusters}, clustered(clusters), "double sums, full matrices")
    matrix = [[round(rng.random(), 2) for _ in range(4)] for _ in range(5)]
    add(2, "se_fixed_cases", {"matrix": matrix}, fixed(matrix), "statistics.variance")
    given = {"mean": 0.96, "n_eff": 80.0, "df": 19.0, "alpha": 0.05}
    add(2, "korn_graubard", given, strict(**given), "quadrature, bisection", NUMERIC)
    values = [0.1, 0.9, 0.4, 0.7, 0.6]
    add(2, "cluster_bootstrap", {"case_means": values}, exhaustive_bootstrap(values), "all resamples", {"abs": 0.03, "rel": 0})
    times = [round(rng.expovariate(0.05), 1) for _ in range(25)]
    expected = [next(v for v in sorted(times) if sum(x <= v for x in times) >= q * len(times)) for q in (0.5, 0.9, 0.95)]
    add(
        5,
        "quantiles",
        {"values": times, "q": [0.5, 0.9, 0.95]},
        {"inverted_cdf": expected, "mean": statistics.fmean(times)},
        "definition",
    )
    for limits in ([20.0], [10.0, 20.0, 40.0]):
        caps = [rng.choice(limits) for _ in times]
        given = {
            "time": [min(v, c) for v, c in zip(times, caps, strict=True)],
            "completed": [int(v <= c) for v, c in zip(times, caps, strict=True)],
        }
        add(5, "censored_latency", given, redistributed(**given), "redistribution to the right", NUMERIC)
    return made


if __name__ == "__main__":
    json.dump({"schema": "eval-vectors/1", "vectors": vectors()}, sys.stdout, indent=1)
    print()
