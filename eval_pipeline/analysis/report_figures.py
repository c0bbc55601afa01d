"""The plots of the report's first page: which values go into which picture, and what must be said beneath it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from eval_pipeline.analysis import measures, plots
from eval_pipeline.analysis.board import Span
from eval_pipeline.analysis.report_pages import number, p_value, signed, span
from eval_pipeline.analysis.report_tables import Data
from eval_pipeline.analysis.stat_distributions import t_quantile
from eval_pipeline.analysis.stats import (
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
            text=f"{_text(arm.score)} [{span(arm.ci_low, arm.ci_high)}]" if arm.ci_low is not None else _text(arm.score),
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


def differences(data: Data) -> Figure | None:
    rows: list[plots.Interval] = []
    for one in data.board.comparisons:
        p = "" if one.p_holm is None else f", p {p_value(one.p_holm)}"
        label = one.b if data.board.baseline else f"{one.b} − {one.a}"
        text = "not known" if one.diff is None else f"{signed(one.diff)}{p}"
        arm = data.arms.index(one.b)
        rows.append(
            plots.Interval(label=plots.short(label), value=one.diff, low=one.ci_low, high=one.ci_high, text=text, arm=arm)
        )
    if not rows:
        return None
    against = f"Difference from {data.board.baseline}" if data.board.baseline else "Differences between arms"
    reach = max((abs(x) for row in rows for x in (row.value, row.low, row.high) if x is not None), default=0.1) * 1.08 or 0.1
    reach = min(reach, 1.02 * (data.span[1] - data.span[0]))
    told = "; ".join(f"{row.label} {row.text}" for row in rows)
    svg = plots.intervals(rows, title=f"{against}: {told}", axis="difference of mean scores", limits=(-reach, reach), zero=True)
    notes = ["Paired by case, with its 95% interval for new cases; p after Holm."]
    if any("insufficient_discordance" in one.flags for one in data.board.comparisons):
        notes.append("Where fewer than 6 cases differ, the interval is the wider of two.")
    return Figure(title=against, svg=svg, notes=notes)


def quality_cost(data: Data) -> Figure | None:
    spans = {arm.arm: arm.money.a_case for arm in data.board.arms}
    sure = {arm.arm: arm.front.cost for arm in data.board.arms}
    return _quality_against(data, spans, sure, "Score against cost", "USD a case for models (logarithmic)", log=True)


def quality_latency(data: Data) -> Figure | None:
    times, scores_by_case = data.case_means(measures.latency_s), data.case_means()
    spans = {arm: _mean_span(times[arm], data) for arm in data.arms}
    sure = prob_on_front({arm: [scores_by_case[arm], times[arm]] for arm in data.arms}, ("max", "min"), data.worlds)
    axis = "mean seconds a case (a timeout counts as its limit)"
    return _quality_against(data, spans, sure, "Score against latency", axis, log=False)


def _quality_against(
    data: Data, spans: Mapping[str, Span], sure: Mapping[str, float | None], title: str, axis: str, *, log: bool
) -> Figure | None:
    rows = {arm.arm: arm for arm in data.board.arms}
    values = {arm: x for arm in data.arms if (x := spans[arm].value) is not None and rows[arm].score is not None}
    if not values:
        return None
    shown = list(values)
    front = {shown[index] for index in pareto_front([(rows[arm].score, values[arm]) for arm in shown], ("max", "min"))}
    points = [
        plots.Point(
            label=plots.short(arm),
            x=x,
            x_low=spans[arm].low,
            x_high=spans[arm].high,
            y=rows[arm].score or 0.0,
            y_low=rows[arm].ci_low,
            y_high=rows[arm].ci_high,
            arm=data.arms.index(arm),
            on_front=arm in front,
        )
        for arm, x in values.items()
    ]
    unsure = [f"{arm} {p:.0%}" for arm in shown if (p := sure.get(arm)) is not None and front_label(p) == "undetermined"]
    notes = ["Filled: on the front, no other arm is as good in both. Whiskers: 95% intervals for new cases, cut at the frame."]
    if unsure:
        notes.append(f"On the front in so many of the resamples, where that is not clear: {', '.join(unsure)}.")
    lacking = [arm for arm in data.arms if arm not in values]
    if lacking:
        notes.append(f"Not shown, for a value could not be had: {', '.join(lacking)}.")
    told = "; ".join(f"{p.label}: {number(p.y)} at {p.x:.4g}{', on the front' if p.on_front else ''}" for p in points)
    svg = plots.scatter(points, title=f"{title}: {told}", x_axis=axis, y_axis="score", y_limits=_padded(data.span), log=log)
    return Figure(title=title, svg=svg, notes=notes)


def _mean_span(cases: Mapping[str, float], data: Data) -> Span:
    """The ends are None where nothing varies that could be measured."""
    if not cases:
        return Span()
    mean = math.fsum(cases.values()) / len(cases)
    error = cr2(list(cases.values()), case_clusters(cases, data.worlds))
    if error.se is None or error.df is None:
        return Span(value=mean)
    half = t_quantile(0.975, error.df) * error.se
    return Span(value=mean, low=max(mean - half, 0.0), high=mean + half)


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
            if (a := means[baseline].get(case)) is not None and (b := means[arm].get(case)) is not None
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


def _padded(limits: tuple[float, float]) -> tuple[float, float]:
    slack = 0.02 * (limits[1] - limits[0])
    return limits[0] - slack, limits[1] + slack


def _text(value: float | None) -> str:
    return "no score" if value is None else str(number(value))
