"""The plots of the report's first page: which values go into which picture, and what must be said beneath it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from eval_pipeline.analysis import plots
from eval_pipeline.analysis.report_pages import number, p_value, signed, span
from eval_pipeline.analysis.report_tables import CaseMeans, Data
from eval_pipeline.analysis.stat_distributions import t_quantile
from eval_pipeline.analysis.stats import (
    Contrast,
    case_clusters,
    censored_latency,
    cr2,
    front_label,
    pareto_front,
    prob_on_front,
)

PAIRS_MAX = 40


@dataclass(frozen=True, kw_only=True)
class Figure:
    """notes: what a reader must know to read it right, or what it does not show."""

    title: str
    svg: Markup
    notes: list[str] = field(default_factory=list[str])


def scores(data: Data) -> Figure:
    rows = [
        plots.Interval(
            label=plots.short(arm.arm),
            value=arm.score,
            low=arm.ci_low,
            high=arm.ci_high,
            text=f"{_text(arm.score)}  [{span(arm.ci_low, arm.ci_high)}]" if arm.ci_low is not None else _text(arm.score),
            arm=index,
            faint_low=arm.bound_low if arm.n_not_judged or arm.n_valid < arm.n_cells else None,
            faint_high=arm.bound_high,
        )
        for index, arm in enumerate(data.board.arms)
    ]
    notes = ["Mean over cases with its 95% interval for new cases."]
    if any(row.faint_low is not None for row in rows):
        notes.append("Grey band: the means possible if what is missing were the worst or the best.")
    if any("one_cluster" in arm.flags for arm in data.board.arms):
        notes.append("No interval: all cases are of one world, and nothing is known of another.")
    if any("few_clusters" in arm.flags for arm in data.board.arms):
        notes.append("Few worlds: an interval that rests on so few is wide.")
    told = "; ".join(f"{row.label} {row.text}" for row in rows)
    svg = plots.intervals(rows, title=f"Mean score by arm: {told}", axis="score", limits=_padded(data.span))
    return Figure(title="Score by arm", svg=svg, notes=notes)


def differences(data: Data, family: Sequence[Contrast]) -> Figure | None:
    rows: list[plots.Interval] = []
    for one in family:
        found = one.difference
        p = "" if one.p_holm is None else f"  p {p_value(one.p_holm)}"
        arm = data.arms.index(one.b)
        label = one.b if data.board.baseline else f"{one.b} − {one.a}"
        text = "not known" if found.diff is None else f"{signed(found.diff)}{p}"
        rows.append(
            plots.Interval(
                label=plots.short(label), value=found.diff, low=found.ci_lower, high=found.ci_upper, text=text, arm=arm
            )
        )
    if not rows:
        return None
    against = f"Difference from {data.board.baseline}" if data.board.baseline else "Differences between arms"
    reach = max((abs(x) for row in rows for x in (row.value, row.low, row.high) if x is not None), default=0.1) * 1.08 or 0.1
    reach = min(reach, 1.02 * (data.span[1] - data.span[0]))
    told = "; ".join(f"{row.label} {row.text}" for row in rows)
    svg = plots.intervals(rows, title=f"{against}: {told}", axis="difference of mean scores", limits=(-reach, reach), zero=True)
    notes = ["Paired by case, with its 95% interval for new cases; p after Holm."]
    if any("insufficient_discordance" in one.difference.flags for one in family):
        notes.append("Fewer than 6 cases differ somewhere: there the interval is the wider of two.")
    return Figure(title=against, svg=svg, notes=notes)


def quality_cost(data: Data) -> Figure | None:
    return _quality_against(data, "cost_usd", "Score against cost", "USD a case for models (logarithmic)", log=True)


def quality_latency(data: Data) -> Figure | None:
    return _quality_against(
        data, "latency_s", "Score against latency", "mean seconds a case (a timeout counts as its limit)", log=False
    )


def _quality_against(data: Data, value: str, title: str, axis: str, *, log: bool) -> Figure | None:
    against, quality = data.case_means(value), data.case_means()
    means = {arm: _mean(against[arm]) for arm in data.arms}
    rows = {arm.arm: arm for arm in data.board.arms}
    shown = [arm for arm in data.arms if means[arm] is not None and rows[arm].score is not None]
    if not shown:
        return None
    front = {shown[index] for index in pareto_front([(rows[arm].score, means[arm]) for arm in shown], ("max", "min"))}
    sure = prob_on_front({arm: [quality[arm], against[arm]] for arm in shown}, ("max", "min"), data.worlds)
    points = [
        _point(
            data,
            arm,
            means[arm] or 0.0,
            _log_interval(against, arm, data) if log else _plain_interval(against, arm, data),
            arm in front,
        )
        for arm in shown
    ]
    unsure = [f"{arm} ({sure[arm]:.0%})" for arm in shown if front_label(sure[arm]) == "undetermined" and sure[arm] is not None]
    notes = ["Filled: no other arm is at least as good in both. Whiskers: 95% intervals for new cases, cut at the frame."]
    if unsure:
        notes.append(f"Share of resamples on the front, where it is not clear: {', '.join(unsure)}.")
    lacking = [arm for arm in data.arms if arm not in shown]
    if lacking:
        notes.append(f"Not shown, for a value could not be had: {', '.join(lacking)}.")
    told = "; ".join(f"{p.label}: {number(p.y)} at {p.x:.4g}{', on the front' if p.on_front else ''}" for p in points)
    svg = plots.scatter(points, title=f"{title}: {told}", x_axis=axis, y_axis="score", y_limits=_padded(data.span), log=log)
    return Figure(title=title, svg=svg, notes=notes)


def _point(data: Data, arm: str, x: float, x_interval: tuple[float | None, float | None], on_front: bool) -> plots.Point:
    index = data.arms.index(arm)
    row = data.board.arms[index]
    return plots.Point(
        label=plots.short(arm),
        x=x,
        x_low=x_interval[0],
        x_high=x_interval[1],
        y=row.score or 0.0,
        y_low=row.ci_low,
        y_high=row.ci_high,
        arm=index,
        on_front=on_front,
    )


def _error(means: CaseMeans, arm: str, data: Data) -> tuple[float, float] | None:
    """t times the error of the mean, and the mean; None where nothing varies that could be measured."""
    known = {case: value for case, value in means[arm].items() if value is not None}
    error = cr2(list(known.values()), case_clusters(known, data.worlds))
    if error.se is None or error.df is None:
        return None
    return t_quantile(0.975, error.df) * error.se, math.fsum(known.values()) / len(known)


def _plain_interval(means: CaseMeans, arm: str, data: Data) -> tuple[float | None, float | None]:
    found = _error(means, arm, data)
    return (None, None) if found is None else (max(found[1] - found[0], 0.0), found[1] + found[0])


def _log_interval(means: CaseMeans, arm: str, data: Data) -> tuple[float | None, float | None]:
    """Of the mean's logarithm, so that no cost falls below nothing."""
    found = _error(means, arm, data)
    if found is None or found[1] <= 0:
        return None, None
    factor = math.exp(min(found[0] / found[1], 50.0))
    return found[1] / factor, found[1] * factor


def paired(data: Data) -> list[Figure]:
    """Each other arm against the baseline, by case; the cases that differ least are left out where there are many."""
    baseline = data.board.baseline
    if baseline is None:
        return []
    means = data.case_means()
    figures: list[Figure] = []
    one_world = len(set(data.worlds.values())) == 1
    for index, arm in enumerate(data.arms):
        both = [
            (case.partition(".")[2] if one_world else case, a, b)
            for case in data.worlds
            if (a := means[baseline][case]) is not None and (b := means[arm][case]) is not None
        ]
        if arm == baseline or not both:
            continue
        kept = sorted(sorted(both, key=lambda row: -abs(row[2] - row[1]))[:PAIRS_MAX], key=lambda row: row[1] - row[2])
        wins, losses = sum(b > a for _, a, b in both), sum(b < a for _, a, b in both)
        told = f"{arm} against {baseline}, by case: better in {wins}, worse in {losses}, equal in {len(both) - wins - losses}"
        svg = plots.pairs([(plots.short(c), a, b) for c, a, b in kept], title=told, axis="score", limits=data.span, arm=index)
        notes = [f"Better in {wins}, worse in {losses}, equal in {len(both) - wins - losses} cases. Hollow: {baseline}."]
        notes += [f"The {PAIRS_MAX} cases of {len(both)} that differ most."] if len(both) > PAIRS_MAX else []
        figures.append(Figure(title=f"{arm} against {baseline}", svg=svg, notes=notes))
    return figures


def latency(data: Data) -> Figure | None:
    lines: list[plots.Curve] = []
    for index, arm in enumerate(data.arms):
        cells = [cell for cell in data.cells if cell.key.arm == arm and cell.valid and cell.latency_s is not None]
        trials = Counter(cell.key.case_name for cell in cells)
        times = [cell.latency_s or 0.0 for cell in cells]
        curve = censored_latency(
            times, [not cell.censored for cell in cells], [1.0 / trials[cell.key.case_name] for cell in cells]
        )
        if curve is None:
            continue
        steps = list(zip(curve.times.tolist(), (1 - curve.survival).tolist(), strict=True))
        stops = sorted({cell.latency_s or 0.0 for cell in cells if cell.censored})
        marks = [(stop, max((share for time, share in steps if time <= stop), default=0.0)) for stop in stops]
        lines.append(
            plots.Curve(
                label=arm, times=[t for t, _ in steps], shares=[s for _, s in steps], censored=marks, end=curve.tau, arm=index
            )
        )
    if not lines:
        return None
    n_censored = sum(cell.censored for cell in data.cells if cell.valid)
    notes = ["Share of cells that had ended; every case counts alike."]
    if n_censored:
        notes.append(f"{n_censored} were stopped at their time limit (ticks): of them only that they take longer is known.")
    told = "; ".join(
        f"{row.arm} median {number(row.latency_p50_s, 1)} s" for row in data.board.arms if row.latency_p50_s is not None
    )
    svg = plots.curves(lines, title=f"Latency by arm: {told}", x_axis="seconds", y_axis="share ended")
    return Figure(title="Latency", svg=svg, notes=notes)


def _mean(cases: dict[str, float | None]) -> float | None:
    known = [value for value in cases.values() if value is not None]
    return math.fsum(known) / len(known) if known else None


def _padded(limits: tuple[float, float]) -> tuple[float, float]:
    slack = 0.02 * (limits[1] - limits[0])
    return limits[0] - slack, limits[1] + slack


def _text(value: float | None) -> str:
    return "no score" if value is None else str(number(value))
