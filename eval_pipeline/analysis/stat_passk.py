"""Whether at least one of k trials passes (pass@k), and whether all k do (pass^k)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from eval_pipeline.analysis.stat_intervals import wilson_t_cr2


@dataclass(frozen=True, kw_only=True)
class PassK:
    """_at: at least one of k; _hat: all k. None without a case of k valid trials; se and CI also with one cluster.

    per_case_*: of the cases kept, in their order. n_cases_dropped: cases with fewer than k valid trials.
    complete: none was dropped; without it the numbers are not to be shown.
    """

    pass_at_k: float | None
    se_at: float | None
    ci_at_lower: float | None
    ci_at_upper: float | None
    pass_hat_k: float | None
    se_hat: float | None
    ci_hat_lower: float | None
    ci_hat_upper: float | None
    n_cases: int
    n_cases_dropped: int
    complete: bool
    per_case_at: tuple[float, ...]
    per_case_hat: tuple[float, ...]


def pass_k(n: Sequence[int], c: Sequence[int], k: int, clusters: Sequence[Hashable] | None = None, alpha: float = 0.05) -> PassK:
    """n valid trials and c passes by case: pass@k = 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, "Evaluating large language models
    trained on code"), pass^k = C(c, k) / C(n, k) (Yao et al. 2024, "tau-bench"). clusters: a label a case; None: each its own.
    """
    if k < 1 or any(not 0 <= passes <= trials for trials, passes in zip(n, c, strict=True)):
        raise ValueError("k must be 1 or more, and every case's passes within 0..trials")
    labels: Sequence[Hashable] = range(len(n)) if clusters is None else clusters
    kept = [(trials, passes, label) for trials, passes, label in zip(n, c, labels, strict=True) if trials >= k]
    at = [1.0 - math.comb(trials - passes, k) / math.comb(trials, k) for trials, passes, _ in kept]
    hat = [math.comb(passes, k) / math.comb(trials, k) for trials, passes, _ in kept]
    of = [label for _, _, label in kept]
    any_of, all_of = (wilson_t_cr2(values, of, alpha=alpha) if kept else None for values in (at, hat))
    return PassK(
        pass_at_k=any_of.mean if any_of else None,
        se_at=any_of.se if any_of else None,
        ci_at_lower=any_of.ci_lower if any_of else None,
        ci_at_upper=any_of.ci_upper if any_of else None,
        pass_hat_k=all_of.mean if all_of else None,
        se_hat=all_of.se if all_of else None,
        ci_hat_lower=all_of.ci_lower if all_of else None,
        ci_hat_upper=all_of.ci_upper if all_of else None,
        n_cases=len(kept),
        n_cases_dropped=len(n) - len(kept),
        complete=len(kept) == len(n) > 0,
        per_case_at=tuple(at),
        per_case_hat=tuple(hat),
    )
