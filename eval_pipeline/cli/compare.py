from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import counted, emit, examples, harmless, json_option, shown, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.compare import Comparison, SideSummary
    from eval_pipeline.analysis.power import Needed
    from eval_pipeline.analysis.stats import LogRatio

_SHAPES = "evals compare EXPERIMENT A B, or across experiments: evals compare EXPERIMENT:A EXPERIMENT:B"
_CASE_COLUMNS, _CRITERION_COLUMNS = 36, 46


@click.command(
    epilog=examples(
        "evals compare demo base narrow",
        "evals compare demo base narrow --margin 0.05   # also: is it no worse by more than that?",
        "evals compare demo:base other:base",
    )
)
@click.argument("which", nargs=-1, required=True, metavar="EXPERIMENT A B | EXPERIMENT:A EXPERIMENT:B")
@click.option("--margin", type=float, help="So much worse is still no worse, in score points; declare it before the run. 0.05.")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="How often a difference may be claimed where there is none.",
)
@click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.8,
    show_default=True,
    help="How sure one wants to be of seeing a difference: for what the data can tell.",
)
@click.option("--moves", type=click.IntRange(min=0), default=8, show_default=True, help="So many cases and criteria; 0: all.")
@json_option
@with_settings
def command(
    settings: Settings, which: tuple[str, ...], margin: float | None, alpha: float, power: float, moves: int, as_json: bool
) -> None:
    """B against A on the cases they share: quality, cost, latency, what moved, and whether the data can tell.

    Differences are B - A, ratios B / A. Across experiments both must ask the same and be judged the same way.
    An import's name may stand for an experiment: what it does not tell is said. --alpha is two-sided for
    differences and ratios, one-sided for "no worse by more than the margin".
    """
    from eval_pipeline.analysis.compare import DEFAULT_MARGIN, compare
    from eval_pipeline.analysis.sources import side_of, source_of
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records

    left, right = _sides(which)
    with read_records(settings) as records:
        a, b = (side_of(records, source_of(settings, records, name), arm) for name, arm in (left, right))
    try:
        found = compare(a, b, margin=DEFAULT_MARGIN if margin is None else margin, alpha=alpha, power=power)
    except ValueError as error:
        raise SpecError(str(error)) from None
    emit(found.as_data(), as_json, lambda: show(found, moves, declared=margin is not None))


def _sides(which: tuple[str, ...]) -> tuple[tuple[str, str], tuple[str, str]]:
    from eval_pipeline.errors import SpecError

    if len(which) == 3:
        return (which[0], which[1]), (which[0], which[2])
    parts = [one.rpartition(":") for one in which]
    if len(parts) != 2 or not all(name and arm for name, _, arm in parts):
        raise SpecError(f"can't tell which two arms are meant by {' '.join(which)!r}", hint=_SHAPES)
    return (parts[0][0], parts[0][2]), (parts[1][0], parts[1][2])


def show(found: Comparison, moves: int = 8, *, declared: bool = True) -> None:
    """moves: so many cases and criteria; 0: all. declared: whether somebody gave the margin."""
    a, b = _names(found)
    drawn = f" of {counted(found.n_worlds, 'world', 'worlds')}"
    if found.a.imported and found.b.imported:
        drawn = ", each a draw of its own"
    cases = f"{counted(found.n_cases, 'case', 'cases')}{drawn} ({found.status})"
    click.echo(f"A = {_about(found.a, a)}\nB = {_about(found.b, b)}\n{cases}\n")
    table(
        ["", "A", "B", "B against A", "95% CI" if found.alpha == 0.05 else f"{1 - found.alpha:.4g} CI", "p"],
        figures(found),
        right=["A", "B", "B against A", "p"],
    )
    for line in verdict_lines(found, declared=declared):
        click.echo(line)
    _show_cases(found, moves)
    _show_criteria(found, moves)
    for note in [*(f"provisional: {reason}" for reason in found.reasons), *(f"note: {note}" for note in found.notes)]:
        click.echo(note)


def _names(found: Comparison) -> tuple[str, str]:
    """The arms by their names; with their experiments where these differ."""
    if found.a.experiment == found.b.experiment:
        return found.a.arm, found.b.arm
    return f"{found.a.experiment}:{found.a.arm}", f"{found.b.experiment}:{found.b.arm}"


def _about(side: SideSummary, name: str) -> str:
    failed = {kind: n for kind, n in side.failures.items() if n}
    said = f"; failed: {', '.join(f'{n} {kind}' for kind, n in failed.items())}" if failed else ""
    return f"{name}: {side.n_scored} of {side.n_cells} cells have a score{said}"


def figures(found: Comparison) -> list[list[str]]:
    """Score, pass rate, cost and latency: of A, of B, B against A, interval, p."""
    difference = found.difference
    diff = "-" if difference.diff is None else f"{difference.diff:+.3f}"
    interval = _interval(difference.ci_lower, difference.ci_upper, "+.3f")
    return [
        ["score", shown(found.a.score), shown(found.b.score), diff, interval, _p(difference.p)],
        ["pass rate", shown(found.a.pass_rate), shown(found.b.pass_rate), "", "", ""],
        ["USD a case", *(_usd(side.cost_usd) for side in (found.a, found.b)), *_ratio(found.cost)],
        ["latency s", *(_s(side.latency_s) for side in (found.a, found.b)), *_ratio(found.latency)],
    ]


def _ratio(ratio: LogRatio) -> list[str]:
    bound = {"lower": ">= ", "upper": "<= "}.get(ratio.bound or "", "")
    value = "-" if ratio.ratio is None else f"{bound}x{ratio.ratio:.3f}"
    return [value, _interval(ratio.ci_lower, ratio.ci_upper, ".3f", "x"), _p(ratio.p)]


def _interval(low: float | None, high: float | None, how: str, unit: str = "") -> str:
    return "-" if low is None or high is None else f"{unit}{low:{how}} to {unit}{high:{how}}"


def _p(p: float | None) -> str:
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _usd(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:.6f}"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def verdict_lines(found: Comparison, *, declared: bool = True, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """What the figures say, in words: for people, and for a comment. names: of the two in it."""
    return [
        *_quality_lines(found, names[1]),
        _no_worse_line(found, declared, names),
        _cheaper_line(found),
        *_power_lines(found),
    ]


def _quality_lines(found: Comparison, b: str) -> list[str]:
    low, high = found.difference.ci_lower, found.difference.ci_upper
    reach = _interval(low, high, "+.3f")
    said = {
        "better": f"quality: {b} is better",
        "worse": f"quality: {b} is worse",
        "undecided": f"quality: the data can't tell: they go with {reach}",
        "unknown": "quality: no test could be made of this",
    }[found.quality]
    whys = {
        "no_shared_cases": "no case has a score in both",
        "one_cluster": "all cases are of one world, and nothing is known of another",
        "insufficient_discordance": f"only {found.difference.n_discordant} cases differ",
        "zero_variance": "the differences do not vary",
    }
    why = [whys[flag] for flag in found.difference.flags if flag in whys]
    few = ["few worlds: an interval that rests on so few is wide"] if "few_clusters" in found.non_inferiority.flags else []
    return [said + (f" ({'; '.join(why)})" if why else ""), *few]


def _no_worse_line(found: Comparison, declared: bool, names: tuple[str, str]) -> str:
    test = found.non_inferiority
    margin = f"{found.margin:g}{'' if declared else ' (the default)'}"
    if found.provisional_verdict:
        return f"no worse by more than {margin}: can't be told: what is missing decides it, were it counted against {names[1]}"
    if test.non_inferior is None:
        return f"no worse by more than {margin}: can't be told"
    limit = f"{names[1]} - {names[0]} is above {test.lower:+.3f}, p {_p(test.p)}, one-sided" if test.lower is not None else ""
    return f"no worse by more than {margin}: {'yes' if test.non_inferior else 'not shown'} ({limit})"


def _cheaper_line(found: Comparison) -> str:
    said = {True: "yes", False: "not shown", None: "can't be told"}[found.cheaper_at_quality]
    approximate = found.cost.ci_upper is not None and found.cost.n_shared < 30
    return f"cheaper at no worse quality: {said}" + (
        " (the cost's interval is approximate below 30 cases)" if approximate else ""
    )


def _power_lines(found: Comparison) -> list[str]:
    power = found.power
    if power is None:
        return ["what would tell: unknown; that takes two shared cases at least"]
    if "one_cluster" in found.difference.flags:
        return ["what would tell: cases of other worlds; no number of cases or trials of this one does"]
    if power.detectable == 0.0:
        return ["what would tell: unknown; these differences do not vary, so they do not say how far new ones would"]
    trials = f"{power.trials_a:.3g}" + ("" if power.trials_a == power.trials_b else f" and {power.trials_b:.3g}")
    design = f"{counted(power.n_cases, 'case', 'cases')} x {trials} {'trial' if trials == '1' else 'trials'}"
    impossible = power.detectable is None or power.detectable > found.score_high - found.score_low
    size = "no difference that scores can have" if impossible else f"a difference of {shown(power.detectable)} or more"
    of_worlds = f", if each were of a world of its own: they are of {found.n_worlds}" if found.n_worlds < power.n_cases else ""
    lines = [f"{design} show {size}, {power.power:.0%} of the time{of_worlds}"]
    return [*lines, *(f"  {needed_text(one, apart=power.spread.apart)}" for one in power.needed if one.cases is not None)]


def needed_text(one: Needed, *, apart: bool) -> str:
    """apart: whether the noise of trials is known by itself."""
    trials = "no number of trials would do it" if one.trials is None else f"or {counted(one.trials, 'trial', 'trials')} of these"
    trials = trials if apart else "one trial a case doesn't tell what more would do"
    return f"to see {one.delta:.3f}: about {counted(one.cases or 0, 'case', 'cases')} as unlike as these; {trials}"


def _show_cases(found: Comparison, moves: int) -> None:
    chosen = [move for move in found.cases if move.diff != 0.0][: moves or None]
    if not chosen:
        return
    rows = [
        [
            _short(move.case, _CASE_COLUMNS),
            shown(move.a),
            shown(move.b),
            "-" if move.diff is None else f"{move.diff:+.3f}",
            _usd(move.cost_usd_a),
            _usd(move.cost_usd_b),
            _s(move.latency_s_a),
            _s(move.latency_s_b),
        ]
        for move in chosen
    ]
    columns = ["case", "A", "B", "B - A", "USD A", "USD B", "s A", "s B"]
    same = len(found.cases) - sum(move.diff != 0.0 for move in found.cases)
    table(columns, rows, f"\ncases, the largest moves first ({same} of {len(found.cases)} do not differ)", right=columns[1:])
    keys = [key for move in chosen for key in (move.cell_a, move.cell_b) if key is not None]
    if keys:
        click.echo("\nlook at both verdicts, and at both transcripts (`evals cell transcript KEY`):")
    for key in keys:
        click.echo(f"  evals cell show {harmless(key)}")


def _show_criteria(found: Comparison, moves: int) -> None:
    moved = [move for move in found.criteria if move.met_a != move.met_b][: moves or None]
    if not moved:
        return
    rows = [
        [
            _short(f"{move.case} {move.criterion}", _CRITERION_COLUMNS),
            f"{move.points:g}",
            shown(move.met_a),
            shown(move.met_b),
            f"+{move.gained} -{move.lost} of {move.n}",
        ]
        for move in moved
    ]
    columns = ["criterion", "points", "met A", "met B", "trials that moved"]
    table(columns, rows, "\ncriteria that moved, paired by trial", right=columns[1:])


def _short(text: str, most: int) -> str:
    """From the end: names that begin alike stay apart."""
    return text if len(text) <= most else f"…{text[1 - most :]}"
