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
    given = {**given, rows: [tuple(row) for row in given[rows]]}
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


def direct(function: Callable[..., Any]) -> Callable[[Input, Header], Any]:
    """A function that takes the vector's input by name and returns a record of its expected keys."""
    return lambda given, _header: function(**given)


SUPPORTED: dict[str, Callable[[Input, Header], Any]] = {
    "adjusted_means": direct(stats.adjusted_means),
    "arm_mean": arm_mean,
    "bca_mean_ci": bca_mean_ci,
    "censored_latency": censored_latency,
    "cluster_bootstrap": direct(stats.cluster_bootstrap),
    "experiment_summary": experiment_summary,
    "healthbench_aggregate": direct(stats.healthbench_aggregate),
    "korn_graubard": korn_graubard,
    "median_count": median_count,
    "pass_cell": pass_cell,
    "proportion_ci": direct(stats.proportion_ci),
    "quantiles": direct(stats.quantiles),
    "score_cell": score_cell,
    "se_clustered_cells": direct(stats.se_clustered_cells),
    "se_fixed_cases": direct(stats.se_fixed_cases),
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
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (expected, got)):
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
