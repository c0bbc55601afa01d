"""Run a file of statistics vectors against the product.

    python tests/analysis/run_vectors.py FILE [--sections 1,2] [--list]

A file holds {"vectors": [{id, section, function, input, expected, tol: {abs, rel}}, ...], "status_rules": {...}}.
null is expected as None, "inf" as infinity; `flags` compare as sets; only the keys of `expected` are compared.
Without --sections only vectors whose function is supported are run. Within chosen sections an unsupported function is a failure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from eval_pipeline.analysis import stats

Input = dict[str, Any]
Header = Mapping[str, Any]


def score_cell(given: Input, _header: Header) -> Any:
    keys = ("weight", "verdict", "per_occurrence", "cap", "critical")
    criteria = [stats.CriterionVerdict(**{key: c[key] for key in keys if key in c}) for c in given["criteria"]]
    return stats.score_cell(criteria, given.get("policy") or ("clip_cell" if given.get("clip", True) else "raw"))


def pass_cell(given: Input, _header: Header) -> Any:
    return {"passed": stats.pass_cell(**given)}


def arm_mean(given: Input, _header: Header) -> Any:
    return stats.arm_mean(**_tuples(given, "cells"))


def experiment_summary(given: Input, header: Header) -> Any:
    rules: dict[str, Any] = {**stats.STATUS_RULES, **header.get("status_rules", {})}
    arms = stats.experiment_summary(**_tuples(given, "rows"), rules=rules)
    return {
        name: {**asdict(arm.mean), "status_counts": arm.status_counts, "infra_rate": arm.infra_rate} for name, arm in arms.items()
    }


def _tuples(given: Input, rows: str) -> Input:
    return _ranged({**given, rows: [tuple(row) for row in given[rows]]})


def _ranged(given: Input) -> Input:
    return {**given, "score_range": tuple(given["score_range"])} if "score_range" in given else given


def median_count(given: Input, _header: Header) -> Any:
    return {"verdict": stats.median_count(**given)}


def korn_graubard(given: Input, _header: Header) -> Any:
    lower, upper = stats.korn_graubard(**given)
    return {"ci_lower": lower, "ci_upper": upper}


def bca_mean_ci(given: Input, _header: Header) -> Any:
    lower, upper = stats.bca_mean_ci(**given) or (None, None)
    return {"ci_lower": lower, "ci_upper": upper}


def censored_latency(given: Input, _header: Header) -> Any:
    curve = stats.censored_latency(given["time"], [bool(c) for c in given["completed"]], given.get("weights"))
    levels = {f"q{level}": level / 100 for level in (50, 90, 95, 99)}
    if curve is None:
        return dict.fromkeys([*levels, "rmst", "tau", "censored_rate"])
    found = {name: curve.quantile(level) for name, level in levels.items()}
    return {**found, "rmst": curve.rmst, "tau": curve.tau, "censored_rate": curve.censored_rate}


def comparison(function: Callable[..., Any]) -> Callable[[Input, Header], Any]:
    """Of two arms; which way round the product compares is fixed."""

    def adapted(given: Input, _header: Header) -> Any:
        given = dict(given)
        if given.pop("direction", "b_minus_a") not in ("b_minus_a", "b_over_a"):
            raise ValueError("only b against a is supported")
        return function(**_ranged(given))

    return adapted


def cost_per_solved(given: Input, _header: Header) -> Any:
    return stats.cost_per_solved(**{**given, "cells": [tuple(cell) for cell in given["cells"]]})


def ppi_mean(given: Input, _header: Header) -> Any:
    return stats.ppi_mean(**{"reference": "z", **given})


def confirm_alpha(given: Input, _header: Header) -> Any:
    return {"alpha_j": [stats.confirm_alpha(given["alpha"], query) for query in given["j"]]}


def prob_on_front(given: Input, _header: Header) -> Any:
    """The input's tables are case x arm. resamples: all there are, whose exact shares the drawn ones come near to."""
    metrics = [given["quality_by_case"], given["cost_by_case"]]
    arms = [str(index) for index in range(len(metrics[0][0]))]
    values = {
        arm: [{str(case): row[index] for case, row in enumerate(table)} for table in metrics] for index, arm in enumerate(arms)
    }
    found = stats.prob_on_front(values, ["max", "min"])
    return {"p_front": [found[arm] for arm in arms], "resamples": len(metrics[0]) ** len(metrics[0])}


def named(name: str, function: Callable[..., Any]) -> Callable[[Input, Header], Any]:
    """A function whose result is one value, which the vectors expect under a name."""
    return lambda given, _header: {name: function(**given)}


def direct(function: Callable[..., Any]) -> Callable[[Input, Header], Any]:
    """A function that takes the vector's input by name and returns a record of its expected keys."""
    return lambda given, _header: function(**given)


SUPPORTED: dict[str, Callable[[Input, Header], Any]] = {
    "adjusted_means": direct(stats.adjusted_means),
    "aggregate_votes": direct(stats.aggregate_votes),
    "arm_mean": arm_mean,
    "asymptotic_cs": direct(stats.asymptotic_cs),
    "bca_mean_ci": bca_mean_ci,
    "call_cost": direct(stats.call_cost),
    "censored_latency": censored_latency,
    "cluster_bootstrap": direct(stats.cluster_bootstrap),
    "cohen_kappa": direct(stats.cohen_kappa),
    "confirm_alpha": confirm_alpha,
    "cost_per_solved": cost_per_solved,
    "experiment_summary": experiment_summary,
    "fleiss_kappa": named("kappa", stats.fleiss_kappa),
    "group_sequential_boundaries": direct(stats.group_sequential_boundaries),
    "healthbench_aggregate": direct(stats.healthbench_aggregate),
    "holm": direct(stats.holm),
    "korn_graubard": korn_graubard,
    "krippendorff_alpha": direct(stats.krippendorff_alpha),
    "mcnemar_exact": named("p", stats.mcnemar_exact),
    "mde": direct(stats.mde),
    "median_count": median_count,
    "non_inferiority": comparison(stats.non_inferiority),
    "optimal_trials": direct(stats.optimal_trials),
    "paired_difference": comparison(stats.paired_difference),
    "paired_log_ratio": comparison(stats.paired_log_ratio),
    "pareto_front": named("front", stats.pareto_front),
    "pass_cell": pass_cell,
    "pass_k": direct(stats.pass_k),
    "position_bias": direct(stats.position_bias),
    "ppi_mean": ppi_mean,
    "prob_on_front_exact": prob_on_front,
    "prob_on_front": direct(stats.prob_on_front),
    "prob_superiority_trials": named("prob_superiority", stats.prob_superiority_trials),
    "proportion_ci": direct(stats.proportion_ci),
    "quantile_ci": direct(stats.quantile_ci),
    "quantiles": direct(stats.quantiles),
    "required_cases": direct(stats.required_cases),
    "rogan_gladen": direct(stats.rogan_gladen),
    "rogan_gladen_point": named("estimate", stats.rogan_gladen_point),
    "score_cell": score_cell,
    "se_clustered_cells": direct(stats.se_clustered_cells),
    "se_fixed_cases": direct(stats.se_fixed_cases),
    "verbosity_spearman": named("rho", stats.verbosity_spearman),
}


def differences(expected: Any, got: Any, tol: Mapping[str, float], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, expected, got) of everything that differs."""
    if isinstance(expected, dict) and isinstance(got, Mapping):
        yield from _record_differences(cast(dict[str, Any], expected), cast(Mapping[str, Any], got), tol, path)
    elif isinstance(expected, list) and isinstance(got, list | tuple):
        left, right = cast(list[Any], expected), cast(Sequence[Any], got)
        if len(left) != len(right):
            yield path, left, right
            return
        for index, pair in enumerate(zip(left, right, strict=True)):
            yield from differences(*pair, tol, f"{path}[{index}]")
    elif not _equal(expected, got, tol):
        yield path, expected, got


def _record_differences(
    expected: dict[str, Any], got: Mapping[str, Any], tol: Mapping[str, float], path: str
) -> Iterator[tuple[str, Any, Any]]:
    for key, value in expected.items():
        at = f"{path}.{key}" if path else key
        if key not in got:
            yield at, value, "nothing of that name"
        elif key == "flags":
            if set(value) != set(got[key]):
                yield at, sorted(value), sorted(got[key])
        else:
            yield from differences(value, got[key], tol, at)


def _equal(expected: Any, got: Any, tol: Mapping[str, float]) -> bool:
    if expected in ("inf", "-inf") and isinstance(got, float):
        return got == float(str(expected))
    if any(isinstance(value, bool) or not isinstance(value, int | float | Decimal) for value in (expected, got)):
        return type(expected) is type(got) and expected == got
    return math.isclose(float(expected), float(got), abs_tol=tol.get("abs", 0.0), rel_tol=tol.get("rel", 0.0))


def failures(vector: Mapping[str, Any], header: Header) -> list[tuple[str, Any, Any]]:
    got = SUPPORTED[vector["function"]](vector["input"], header)
    plain = asdict(got) if is_dataclass(got) and not isinstance(got, type) else got
    return list(differences(vector["expected"], plain, vector["tol"]))


def run(path: Path, sections: set[int] | None) -> int:
    content = json.loads(path.read_text(encoding="utf-8"))
    passed = failed = unsupported = 0
    for vector in content["vectors"]:
        if sections is not None and vector["section"] not in sections:
            continue
        if vector["function"] not in SUPPORTED:
            unsupported += 1
            if sections is not None:
                print(f"{vector['id']}: {vector['function']} is not supported, which within --sections is a failure")
            continue
        found = failures(vector, content)
        for where, expected, got in found:
            print(f"{vector['id']}  {where}  expected {expected!r}  got {got!r}")
        passed, failed = passed + (not found), failed + bool(found)
    print(f"vectors passed={passed} failed={failed} unsupported={unsupported}")
    ran = passed + failed + unsupported
    return 1 if failed or not ran or (sections is not None and unsupported) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="run statistics vectors")
    parser.add_argument("file", type=Path, nargs="?", help="a file of vectors")
    parser.add_argument("--sections", help="comma-separated section numbers, such as 1,2")
    parser.add_argument("--list", action="store_true", help="name the supported functions")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(sorted(SUPPORTED)))
        return 0
    if options.file is None:
        parser.error("name a file of vectors, or use --list")
    return run(options.file, {int(part) for part in options.sections.split(",")} if options.sections else None)


if __name__ == "__main__":
    sys.exit(main())
