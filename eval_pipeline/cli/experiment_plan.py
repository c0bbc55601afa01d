"""What a run would do, cost, take and be able to show, before any money is spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.compare import needed_text
from eval_pipeline.cli.experiment_run import lock_file
from eval_pipeline.cli.output import counted, emit, examples, harmless, json_option, shown, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.power import Outlook, Spread
    from eval_pipeline.runner.estimate import ModelEstimate, SandboxEstimate, TimeEstimate
    from eval_pipeline.runner.planning import JudgeEstimate, Plan
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.records import Records


@click.command(
    "plan", epilog=examples("evals experiment plan demo", "evals experiment plan demo --pilot demo:base:narrow --detect 0.1")
)
@click.argument("file")
@click.option("--fresh", is_flag=True, help="Plan a new experiment even when an older one of this file could be resumed.")
@click.option("--reuse/--no-reuse", default=True, help="Whether results of other experiments count for equal cells.")
@click.option("--concurrency", type=click.IntRange(min=1), help="So many cells at a time; the installation's limit if not given.")
@click.option("--pilot", metavar="EXPERIMENT[:A:B]", help="How scores vary is as between these arms of an earlier experiment.")
@click.option("--sd-between", type=click.FloatRange(min=0), metavar="SD", help="Assumed, of true differences between cases. 0.2.")
@click.option("--sd-within", type=click.FloatRange(min=0), metavar="SD", help="Assumed, of the trials of a case. 0.2.")
@click.option(
    "--detect", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True, help="The difference that matters."
)
@click.option(
    "--power",
    type=click.FloatRange(0.05, 1, max_open=True),
    default=0.8,
    show_default=True,
    help="How sure one wants to be of seeing it.",
)
@click.option(
    "--case-usd", type=click.FloatRange(min=0), default=0.0, help="What writing one more case costs: trials against cases."
)
@json_option
@with_settings
def plan_command(
    settings: Settings, file: str, fresh: bool, reuse: bool, as_json: bool, concurrency: int | None, **design: Any
) -> None:
    """What `run` would do, cost, take and be able to show.

    Cells, what is done already, limits, notes. Spends nothing.

    A difference between arms that can be shown depends on how scores vary: as in an earlier experiment (--pilot), else as assumed.
    """
    from eval_pipeline.runner.planning import moved_text
    from eval_pipeline.store.records import open_records

    locked = lock_file(settings, file)
    with open_records(settings) as records:
        planned, time = rated_plan(settings, records, locked, fresh=fresh, reuse=reuse, concurrency=concurrency)
        shows = _outlook(records, planned, **design)
    data = plan_data(locked, planned, time) | {"outlook": None if shows is None else asdict(shows)}
    lines = plan_lines(locked, planned, time, moved_text(planned, file), shows)
    emit(data, as_json, lambda: click.echo("\n".join(lines)))


def rated_plan(
    settings: Settings, records: Records, locked: Locked, *, fresh: bool, reuse: bool = True, concurrency: int | None = None
) -> tuple[Plan, TimeEstimate]:
    """The plan with what sandboxes cost and how long it takes. concurrency: None is the installation's limit."""
    from eval_pipeline.runner.estimate import estimate_time
    from eval_pipeline.runner.planning import plan
    from eval_pipeline.runner.rates import current_rates
    from eval_pipeline.vault.delivery import Secrets

    rates = asyncio.run(current_rates(settings, locked.run.backend))
    planned = plan(locked, records, Secrets(settings, records), fresh=fresh, reuse=reuse, rates=rates)
    places = concurrency or _places(settings, records, locked.run.backend)
    return planned, estimate_time(planned.sandboxes, planned.n_open, places)


def plan_data(locked: Locked, planned: Plan, time: TimeEstimate) -> dict[str, Any]:
    return {
        "experiment": planned.run.experiment_id,
        "resumes": planned.resumes is not None,
        "moved": planned.moved,
        "cases": [case.name for case in planned.run.cases],
        "arms": [{"arm": arm.name, "commit": arm.commit, "tree": arm.tree, "config": arm.config} for arm in planned.run.arms],
        "trials": planned.run.trials,
        "n_cells": planned.n_cells,
        "n_reused": planned.n_done + len(planned.adopted),
        "n_done": planned.n_done,
        "adopted": planned.adopted,
        "n_new": planned.n_open,
        "open_cells": planned.open_cells,
        "judge": asdict(planned.judge),
        "n_judge_criteria": planned.n_judge_criteria,
        "max_cost_usd": planned.max_cost_usd,
        "models": asdict(planned.models),
        "sandboxes": asdict(planned.sandboxes),
        "budget_usd": locked.spec.budget.cost_usd if locked.spec.budget else None,
        "budget": locked.spec.budget.model_dump() if locked.spec.budget else None,
        "schedule": _schedule(locked),
        "notes": planned.notes,
        "time": asdict(time),
    }


def plan_lines(
    locked: Locked, planned: Plan, time: TimeEstimate, moved_since: str | None, shows: Outlook | None = None
) -> list[str]:
    verb = "resumes" if planned.resumes else "new"
    cases = counted(len(planned.run.cases), "case", "cases")
    arms, trials = counted(len(planned.run.arms), "arm", "arms"), counted(planned.run.trials, "trial", "trials")
    cells = counted(planned.n_cells, "cell", "cells")
    lines = [
        f"{planned.run.experiment_id} ({verb}): {cases} x {arms} x {trials}",
        f"{cells}: {planned.n_open} to run, {planned.n_done} done already{_adopted(planned.adopted)}",
    ]
    for arm, now in zip(planned.run.arms, locked.run.arms, strict=True):
        moved = "" if planned.resumes is None or arm.tree == now.tree else f" (MOVED since: now {(now.commit or now.tree)[:12]})"
        lines.append(f"  arm {arm.name}: {arm.ref} = {(arm.commit or arm.tree)[:12]}{moved}{_settings(arm.config)}")
    lines += [
        f"{_most_line(planned)}; budget {_budget(locked.spec.budget.cost_usd if locked.spec.budget else None)}",
        _models_line(planned.models),
        _sandboxes_line(planned.sandboxes, planned.n_open),
    ]
    if planned.judge.n_calls:
        lines.append(_judge_line(planned.judge))
    if planned.n_open:
        lines.append(time_line(time))
    lines += [] if shows is None else _outlook_lines(shows, planned.run.trials, _span(locked))
    if (schedule := _schedule(locked)) is not None:
        when = f"{schedule['cron']} ({schedule['timezone']}), next at {shown(schedule['next_due'])}"
        lines.append(f"scheduled: {when}; `evals up` starts it")
    return lines + [f"note: {line}" for line in [*filter(None, [moved_since]), *planned.notes]]


def _schedule(locked: Locked) -> dict[str, Any] | None:
    from datetime import UTC, datetime

    from eval_pipeline.specs.schedule import next_due

    schedule = locked.spec.schedule
    return None if schedule is None else {**schedule.model_dump(), "next_due": next_due(schedule, datetime.now(UTC))}


def _places(settings: Settings, records: Records, backend: str) -> int:
    if backend == "modal":
        return min(settings.modal.max_sandboxes, records.leases.limit("modal running"))
    return records.leases.limit("running")


def _outlook(
    records: Records,
    planned: Plan,
    *,
    pilot: str | None,
    sd_between: float | None,
    sd_within: float | None,
    detect: float,
    power: float,
    case_usd: float,
) -> Outlook | None:
    """None for an experiment of one arm: there is nothing to compare."""
    from eval_pipeline.analysis.power import assumed_spread, outlook
    from eval_pipeline.errors import SpecError

    if pilot is not None and (sd_between is not None or sd_within is not None):
        raise SpecError("--pilot says how scores vary, and so do --sd-between and --sd-within", hint="give one or the other")
    if len(planned.run.arms) < 2:
        return None
    names = [case.name for case in planned.run.cases]
    spread = assumed_spread(sd_between, sd_within) if pilot is None else _of_pilot(records, pilot, names)
    known = [usd for usd in (planned.models.cost_usd, planned.sandboxes.cost_usd) if usd is not None]
    trial_usd = 2 * float(sum(known)) / planned.n_open if known and planned.n_open else None
    return outlook(spread, len(names), planned.run.trials, detect, power, case_usd, trial_usd)


def _of_pilot(records: Records, pilot: str, names: Sequence[str]) -> Spread:
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.analysis.power import Spread
    from eval_pipeline.errors import NotFound, SpecError

    name, *given = pilot.split(":")
    experiment = records.ledger.experiment(name)
    known = [arm.name for arm in experiment.run.arms]
    first = experiment.baseline or known[0]
    arms = given or [first, *(arm for arm in known if arm != first)][:2]
    if len(arms) != 2 or arms[0] == arms[1]:
        raise SpecError(
            f"a pilot is two arms of an experiment, found {pilot!r}", hint=f"EXPERIMENT:A:B; its arms: {', '.join(known)}"
        )
    if lacking := [arm for arm in arms if arm not in known]:
        raise NotFound(f"{experiment.id} has no arm {lacking[0]!r}", hint=f"its arms: {', '.join(known)}")
    table = load_table(records, experiment)
    scores: list[dict[str, list[float | None]]] = []
    for arm in arms:
        cells = [cell for cell in table if cell.key.arm == arm and cell.key.case_name in names]
        scores.append({case: [cell.score for cell in cells if cell.key.case_name == case] for case in names})
    found = Spread.of_pilot(scores[0], scores[1], f"{experiment.id}, its arms {arms[0]} and {arms[1]}")
    if found is None:
        hint = "take an earlier experiment of the same cases, or assume: --sd-between, --sd-within"
        raise SpecError(f"{experiment.id} has fewer than two of these cases with a score in both arms", hint=hint)
    return found


def _adopted(adopted: Mapping[str, str]) -> str:
    sources = sorted({key.partition("/")[0] for key in adopted.values()})
    return f", {len(adopted)} adopted from equal cells of {', '.join(sources)}" if adopted else ""


def _most_line(planned: Plan) -> str:
    if planned.max_cost_usd is not None:
        return f"models cost at most {planned.max_cost_usd:.4f} USD by the cases' limits"
    names = [case.name for case in planned.run.cases if case.limits.cost_usd is None]
    have = counted(len(names), "case has", "cases have")
    return f"models cost at most: unknown: {have} no limit of cost ({', '.join(names[:3])}{', ...' if names[3:] else ''})"


def _budget(usd: float | None) -> str:
    return "none" if usd is None else f"{usd:g} USD"


def _judge_line(guess: JudgeEstimate) -> str:
    calls = counted(guess.n_calls, "call", "calls")
    if guess.cost_usd is None:
        return f"judge: at most {calls}; what they cost is not known yet"
    return f"judge: at most {calls}, {guess.cost_usd:.4f} USD by the mean of {counted(guess.n_measured, 'earlier one', 'earlier ones')}"


def _models_line(guess: ModelEstimate) -> str:
    if guess.cost_usd is None:
        return "what models will cost is not known: there are no earlier cells, and cases without a limits.cost_usd"
    about = "at most" if guess.at_most else "about"
    return f"models are expected to cost {about} {guess.cost_usd:.4f} USD: {guess.source}"


def _sandboxes_line(guess: SandboxEstimate, n_cells: int) -> str:
    about = "at most about" if guess.at_most else "about"
    each = f"{guess.seconds / n_cells:.0f} s a cell ({guess.seconds_from})" if n_cells else "none to run"
    if guess.cost_usd is None:
        return f"sandboxes: {each}; what they cost is not known"
    return f"sandboxes cost {about} {guess.cost_usd:.4f} USD: {each}, at the rate {guess.rate}: {guess.source}"


def _settings(config: Mapping[str, Any]) -> str:
    """`, model=stand-in, top_k=3`: what is no plain word as JSON."""
    plain = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in config.items()}
    return "".join(f", {name}={harmless(value)}" for name, value in plain.items())


def time_line(time: TimeEstimate) -> str:
    from eval_pipeline.cli.progress import duration

    places = f"at {counted(time.concurrency, 'cell', 'cells')} at a time"
    if time.at_most:
        return f"time: agents run for at most about {duration(time.seconds)} {places}; setting up, judging and further attempts come on top"
    return f"time: about {duration(time.seconds)} {places}; judging and further attempts come on top"


def _span(locked: Locked) -> float:
    """The largest difference that two scores can have."""
    from eval_pipeline.analysis.stats import score_range

    low, high = score_range(locked.score.policy, [case.rubric for case in locked.score.cases.values()])
    return high - low


def _outlook_lines(shows: Outlook, trials: int, span: float) -> list[str]:
    analysis, spread = shows.analysis, shows.analysis.spread
    design = f"{counted(analysis.n_cases, 'case', 'cases')} x {counted(trials, 'trial', 'trials')}"
    smallest = (
        "no difference that scores can have"
        if analysis.detectable is None or analysis.detectable > span
        else f"a difference between two arms of {analysis.detectable:.3f} or more"
    )
    lines = [f"{design} can show {smallest}, {analysis.power:.0%} of the time ({spread.source})"]
    for one in analysis.needed:
        if one.cases is not None:
            lines.append(f"  {needed_text(one, apart=spread.apart)}")
    if shows.best is not None:
        lines.append(f"  at a given spend {counted(shows.best.r_best, 'trial', 'trials')} a case show most{_because(shows)}")
    return lines


def _because(shows: Outlook) -> str:
    if not shows.case_usd:
        return ": a new case costs nothing to write (--case-usd), so more cases beat more trials"
    return f": a case costs {shows.case_usd:g} USD to write, a trial in two arms {shows.trial_usd:.4f}"
