"""Write vectors_compare.json: comparisons, pass^k, costs, the front and judges, from first principles as make_vectors.py does.

python tests/analysis/make_vectors_compare.py > tests/analysis/vectors_compare.json

Full matrices, fractions, enumeration of every subset, sign vector or resample. Nothing of the product is imported.
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

from make_vectors import TIGHT, Record, cr2_full, integral, t_quantile, wilson

Means = dict[str, float | None]


def t_tail(x: float, df: float) -> float:
    """P(T > x) over the angle atan(x / sqrt(df))."""
    whole = integral(lambda a: math.cos(a) ** (df - 1), 0, math.pi / 2 - 1e-12)
    part = integral(lambda a: math.cos(a) ** (df - 1), 0, math.atan(abs(x) / math.sqrt(df)))
    return 0.5 - math.copysign(part / whole / 2, x)


def labels(cases: Sequence[str], world: dict[str, str] | None) -> list[str]:
    return [world.get(c, c) if world else c for c in cases]


def shared(a: Means, b: Means) -> list[str]:
    return [c for c in a if a[c] is not None and b.get(c) is not None]


def by_label(values: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    return [[v for v, n in zip(values, names, strict=True) if n == name] for name in dict.fromkeys(names)]


def flips(sums: Sequence[Fraction]) -> float:
    reached = abs(sum(sums))
    vectors = list(itertools.product((1, -1), repeat=len(sums)))
    return sum(abs(sum(s * u for s, u in zip(signs, sums, strict=True))) >= reached for signs in vectors) / len(vectors)


def paired(a: Means, b: Means, world: dict[str, str] | None, alpha: float, score_range: Sequence[float]) -> Record:
    cases, width = shared(a, b), score_range[1] - score_range[0]
    exact = [Fraction(str(b[c])) - Fraction(str(a[c])) for c in cases]
    d, names = [float(x) / width for x in exact], labels(cases, world)
    diff, (se, df) = statistics.fmean(d), cr2_full(d, names)
    t, flip = t_quantile(1 - alpha / 2, df), flips([sum(g, Fraction(0)) for g in by_label(exact, names)])
    p, low, high = 2 * t_tail(abs(diff) / se, df), diff - t * se, diff + t * se
    discordant = sum(x != 0 for x in exact)
    if discordant < 6:
        ends = wilson((1 + diff) / 2, len(set(names)), t)
        p, low, high = max(p, flip), min(low, 2 * ends[0] - 1), max(high, 2 * ends[1] - 1)
    wins, ties = sum(x > 0 for x in exact), sum(x == 0 for x in exact)
    return {
        "n_shared": len(cases),
        "diff": diff * width,
        "se": se * width,
        "df": df,
        "p": p,
        "ci_lower": low * width,
        "ci_upper": high * width,
        "signflip_p": flip,
        "wins": wins,
        "ties": ties,
        "n_discordant": discordant,
        "prob_superiority": (wins + ties / 2) / len(cases),
        "flags": ["insufficient_discordance"] if discordant < 6 else [],
    }


def guarded(d: Sequence[float], names: Sequence[str], margin: float, alpha: float, width: float) -> Record:
    """The guard as one more weighted observation beside G equal ones; the limit by bisection of the p value."""
    se, df = cr2_full(d, names)
    groups, discordant = len(set(names)), sum(abs(x) > 1e-12 for x in d)
    few = discordant < 6 or se < 1e-12
    h, m = (1.0, width) if few else (0.5, max(0.0, -min(statistics.fmean(g) for g in by_label(d, names))))
    mean, total = statistics.fmean(d), groups + h
    centre = (groups * mean - h * m) / total
    squares = groups * (groups - 1) * se**2 + groups * (mean - centre) ** 2 + h * (-m - centre) ** 2
    spread = math.sqrt(squares / (total * (total - 1)))
    lower = centre - t_quantile(1 - alpha, df) * spread
    p = t_tail((centre + margin) / spread, df)
    return {
        "se": se,
        "df": df,
        "n_discordant": discordant,
        "diff_guarded": centre,
        "se_guarded": spread,
        "lower": lower,
        "p": p,
        "non_inferior": p < alpha,
    }


def inferiority(
    a: Means, b: Means, margin: float, world: dict[str, str] | None, alpha: float, score_range: Sequence[float]
) -> Record:
    cases, width = shared(a, b), score_range[1] - score_range[0]
    lost = [c for c in dict.fromkeys([*a, *b]) if c not in cases]
    d = [(b[c] or 0.0) - (a[c] or 0.0) for c in cases]
    found = guarded(d, labels(cases, world), margin, alpha, width)
    filled = guarded([*d, *(-width for _ in lost)], labels([*cases, *lost], world), margin, alpha, width)
    verdicts = {"non_inferior_filled": filled["non_inferior"], "provisional": filled["non_inferior"] != found["non_inferior"]}
    return found | verdicts | {"n_shared": len(cases), "n_missing": len(lost), "diff": statistics.fmean(d)}


def log_ratio(a: Means, b: Means, world: dict[str, str] | None, alpha: float) -> Record:
    cases = shared(a, b)
    names = labels(cases, world)
    pairs = by_label([(Fraction(str(a[c])), Fraction(str(b[c]))) for c in cases], names)

    def ratio(groups: Sequence[Any]) -> Fraction:
        flat = [pair for group in groups for pair in group]
        return sum((y for _, y in flat), Fraction(0)) / sum((x for x, _ in flat), Fraction(0))

    logs = [math.log(ratio(pairs[:g] + pairs[g + 1 :])) for g in range(len(pairs))]
    se, df = math.sqrt((len(logs) - 1) * statistics.pvariance(logs)), cr2_full([0.0] * len(cases), names)[1]
    whole, t = float(ratio(pairs)), t_quantile(1 - alpha / 2, df)
    return {
        "ratio": whole,
        "se_log": se,
        "df": df,
        "p": 2 * t_tail(abs(math.log(whole)) / se, df),
        "ci_lower": whole * math.exp(-t * se),
        "ci_upper": whole * math.exp(t * se),
    }


def pass_subsets(n: Sequence[int], c: Sequence[int], k: int, clusters: Sequence[str], alpha: float) -> Record:
    kept = [i for i, trials in enumerate(n) if trials >= k]
    subsets = [list(itertools.combinations([j < c[i] for j in range(n[i])], k)) for i in kept]
    at, hat = ([sum(map(how, s)) / len(s) for s in subsets] for how in (any, all))
    found: Record = {"n_cases": len(kept), "n_cases_dropped": len(n) - len(kept), "per_case_at": at, "per_case_hat": hat}
    for name, values, mean in (("at", at, "pass_at_k"), ("hat", hat, "pass_hat_k")):
        u, (se, df) = statistics.fmean(values), cr2_full(values, [clusters[i] for i in kept])
        ends = wilson(u, u * (1 - u) / se**2, t_quantile(1 - alpha / 2, df))
        found |= {mean: u, f"se_{name}": se, f"ci_{name}_lower": ends[0], f"ci_{name}_upper": ends[1]}
    return found


def woodruff(matrix: Sequence[Sequence[float | None]], q: float, alpha: float) -> Record:
    """Every case's trials as equal shares of one case's worth of copies, so that order statistics need no weights."""
    rows = [[v for v in row if v is not None] for row in matrix]
    worth = math.lcm(*(len(row) for row in rows))
    copies = sorted(v for row in rows for v in row for _ in range(worth // len(row)))
    total = len(copies)
    estimate = copies[math.ceil(total * q - 1e-9) - 1]
    shares = [sum(v <= estimate for v in row) / len(row) for row in rows]
    u, (se, df) = statistics.fmean(shares), cr2_full(shares, [str(i) for i in range(len(rows))])
    ends = wilson(q, u * (1 - u) / se**2, t_quantile(1 - alpha / 2, df))
    weights = sorted((v, Fraction(1, len(rows) * len(row))) for row in rows for v in row)
    cumulative = list(itertools.accumulate(w for _, w in weights))
    low = [v for (v, _), w in zip(weights, cumulative, strict=True) if w <= ends[0]]
    high = [v for (v, _), w in zip(weights, cumulative, strict=True) if w >= ends[1]][1:]
    return {
        "estimate": estimate,
        "p_lower": ends[0],
        "p_upper": ends[1],
        "ci_lower": low[-1] if low else "-inf",
        "ci_upper": high[0] if high else "inf",
    }


def solved(cells: Sequence[Sequence[Any]], world: dict[str, str], alpha: float) -> Record:
    """The error of the log ratio from its numeric gradient over the case means."""
    cases = dict.fromkeys(c[0] for c in cells if c[2] is not None and c[3] is not None)
    of = {k: [c for c in cells if c[0] == k and c[2] is not None and c[3] is not None] for k in cases}
    cost, rate = ([statistics.fmean(c[i] for c in of[k]) for k in cases] for i in (2, 3))

    def log_of(shift: float, case: int) -> float:
        pair = [math.fsum(v * (1 + shift * (i == case)) for i, v in enumerate(values)) for values in (cost, rate)]
        return math.log(pair[0] / pair[1])

    n, h, mean_cost, mean_rate = len(cases), 1e-4, statistics.fmean(cost), statistics.fmean(rate)
    influence = [n * (log_of(h, i) - log_of(-h, i)) / (2 * h) for i in range(n)]
    se, df = cr2_full(influence, labels(list(cases), world))
    t, ratio = t_quantile(1 - alpha / 2, df), mean_cost / mean_rate
    ends = {"ci_lower": ratio * math.exp(-t * se), "ci_upper": ratio * math.exp(t * se)}
    return {"mean_cost": mean_cost, "pass_rate": mean_rate, "cost_per_solved": ratio, "se_log": se, **ends}


def dominates(left: Sequence[Fraction], right: Sequence[Fraction]) -> bool:
    """Of (quality, cost, latency)."""
    worse = left[0] < right[0] or left[1] > right[1] or left[2] > right[2]
    return not worse and list(left) != list(right)


def front_shares(arms: dict[str, list[dict[str, float]]], world: dict[str, str]) -> Record:
    names = list(dict.fromkeys(world.values()))
    on, resamples = dict.fromkeys(arms, 0), list(itertools.product(names, repeat=len(names)))
    for drawn in resamples:
        cases = [c for name in drawn for c in world if world[c] == name]
        table = {
            arm: [sum((Fraction(str(m[c])) for c in cases), Fraction(0)) / len(cases) for m in metrics]
            for arm, metrics in arms.items()
        }
        for arm, values in table.items():
            on[arm] += not any(dominates(other, values) for other in table.values())
    return {arm: count / len(resamples) for arm, count in on.items()}


def alpha_pairs(ratings: Sequence[Sequence[float | None]], gap: Callable[[float, float], float]) -> float:
    """Krippendorff's alpha from its definition: mean gap within units against mean gap between any two ratings."""
    units = [[r for r in unit if r is not None] for unit in zip(*ratings, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    flat = [r for unit in units for r in unit]
    within = sum(gap(x, y) / (len(u) - 1) for u in units for x, y in itertools.permutations(u, 2)) / len(flat)
    return 1 - within / (sum(gap(x, y) for x, y in itertools.permutations(flat, 2)) / (len(flat) * (len(flat) - 1)))


def main() -> None:
    from make_vectors_inputs import inputs

    made: list[Record] = []

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

    inputs(add, random.Random(7))
    json.dump({"schema": "eval-vectors/1", "vectors": made}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
