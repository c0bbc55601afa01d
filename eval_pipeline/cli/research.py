from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, dry_run_option, emit, examples, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.cli.research_open import detach, opened
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.research.driver import Driver
    from eval_pipeline.research.journal import Next, Row
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@click.group()
def command() -> None:
    """Make an app better on one half of the worlds, and have it confirmed on the other half, within a budget."""


@command.command("run", epilog=examples("evals research run desk --dry-run", "evals research run desk --wait"))
@click.argument("goal")
@click.option("--wait/--no-wait", default=False, help="Drive it here until it stops; else a process of its own does.")
@click.option("--fresh", is_flag=True, help="When the app has moved since, begin a new research instead of going on.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@dry_run_option
@json_option
@with_settings
@starts_sandboxes
def run(settings: Settings, goal: str, wait: bool, fresh: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Begin a goal file's research, or go on with it, with its own proposer."""
    from eval_pipeline.cli.research_dry import dry_open
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        if dry_run:
            return dry_open(settings, records, goal, as_json, fresh=fresh, drives=True, asks_nobody=yes)
        research = opened(settings, records, goal, fresh=fresh, yes=yes)
        if not wait:
            detach(settings, ["run", goal, "--wait", "--yes"], research)
            return _show(records, research, as_json)
        return _driven(settings, records, research, as_json, lambda driver: driver.advance(proposes=True))


@command.command("start")
@click.argument("goal")
@click.option("--fresh", is_flag=True, help="When the app has moved since, begin a new research instead of going on.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@dry_run_option
@json_option
@with_settings
def start(settings: Settings, goal: str, fresh: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Lock a goal file for an agent that proposes by itself.

    With `next`, `submit`, `next`, ... Nothing runs yet.
    """
    from eval_pipeline.cli.research_dry import dry_open
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        if dry_run:
            return dry_open(settings, records, goal, as_json, fresh=fresh, drives=False, asks_nobody=yes)
        return _show(records, opened(settings, records, goal, fresh=fresh, yes=yes), as_json)


@command.command("next")
@click.argument("name")
@json_option
@with_settings
@starts_sandboxes
def following(settings: Settings, name: str, as_json: bool) -> int:
    """What a proposal needs: metric, space, incumbent, journal.

    What is under way is brought to its end first.
    """
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        return _turn(settings, records, name, as_json, None)


@command.command(
    "submit",
    epilog=examples("""evals research submit desk --config '{"model": "stand-in", "top_k": 4}' --note "reads more" --dry-run"""),
)
@click.argument("name")
@click.option("--config", metavar="JSON", help="The whole config of the candidate.")
@click.option("--commit", metavar="REV", help="The app's commit; the incumbent's without it.")
@click.option("--note", "remark", help="Why; it stands in the journal.")
@click.option("--cost-usd", type=float, help="What this proposal has cost; it counts against the budget.")
@dry_run_option
@json_option
@with_settings
@starts_sandboxes
def submit(
    settings: Settings,
    name: str,
    config: str | None,
    commit: str | None,
    remark: str | None,
    cost_usd: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Propose a candidate and wait for the answer.

    Rejected on dev, rejected by the holdout, or accepted.
    """
    from eval_pipeline.cli.research_dry import dry_submit
    from eval_pipeline.store.records import read_records

    given: dict[str, Any] = {"commit": commit, "note": remark, "cost_usd": cost_usd}
    answer = {key: value for key, value in given.items() if value is not None}
    if config is not None:
        answer["config"] = _json(config)
    with read_records(settings) as records:
        if dry_run:
            return dry_submit(settings, records, name, answer, as_json)
        return _turn(settings, records, name, as_json, answer)


@command.command("status")
@click.argument("name")
@json_option
@with_settings
def status(settings: Settings, name: str, as_json: bool) -> int:
    """Where it stands, what it has spent, and why it stopped.

    Nothing of the holdout but accepted or rejected.
    """
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        return _show(records, records.researches.find(name).id, as_json)


@command.command("list")
@json_option
@with_settings
def list_researches(settings: Settings, as_json: bool) -> None:
    """All researches, newest first."""
    from eval_pipeline.cli.output import table
    from eval_pipeline.research.reporting import status as status_of
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        rows = [status_of(records, row) for row in records.researches.all()]
    columns = ["research", "state", "n_candidates", "n_accepted", "created_by"]
    emit(rows, as_json, lambda: table(columns, [[row[column] for column in columns] for row in rows], right=columns[2:4]))


@command.command("stop")
@click.argument("name")
@click.option("--reason", default="no reason was given", help="It stands in the journal.")
@dry_run_option
@json_option
@with_settings
def stop(settings: Settings, name: str, reason: str, dry_run: bool, as_json: bool) -> int:
    """Stop it: cells that run are cancelled.

    `run`, `next` and `submit` take it up again.
    """
    from eval_pipeline.cli.research_dry import at_work, dry_stop
    from eval_pipeline.research.driver import driver
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        research = records.researches.find(name).id
        if dry_run:
            return dry_stop(records, research, as_json)
        records.researches.request_stop(research, reason)
        for experiment in at_work(records, research):
            records.ledger.request_cancel(experiment)
        with records.researches.driving(research) as ours:
            pass
        if ours:
            with driver(settings, records, research, _nothing, _nothing) as held:
                if held.state.stopped is None:
                    held.append("stopped", len(held.state.steps) - 1, {"why": f"stopped by request: {reason}"})
        else:
            note("the process that drives it stops before its next step")
        return _show(records, research, as_json)


@command.command("report")
@click.argument("name")
@click.option("--open", "opens", is_flag=True, help="Show the holdout's numbers. It must have stopped, and can't go on then.")
@json_option
@with_settings
def report(settings: Settings, name: str, opens: bool, as_json: bool) -> None:
    """Every decision with its numbers, and the gain that may be published."""
    from eval_pipeline.cli.research_report import show
    from eval_pipeline.research.reporting import report as report_on
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        data = report_on(records, records.researches.find(name), opens=opens)
    emit(data, as_json, lambda: show(data))


def _nothing(_: object) -> None:
    return None


def _json(text: str) -> Any:
    from eval_pipeline.errors import SpecError

    try:
        return json.loads(text)
    except ValueError as error:
        raise SpecError(f"--config is no JSON: {error}", hint="""write it as --config '{"top_k": 4}'""") from None


def _driven(settings: Settings, records: Records, research: str, as_json: bool, act: Callable[[Driver], Next]) -> int:
    """Exit code 3 when the budget stopped it."""
    from eval_pipeline.research.driver import driver
    from eval_pipeline.research.reporting import status as status_of

    with driver(settings, records, research, _engine(settings, records), _say) as held:
        act(held)
    data = status_of(records, records.researches.find(research))
    failure = _out_of_budget(data)
    emit(data, as_json, lambda: _people(data), failure)
    return 0 if failure is None else 3


def _out_of_budget(data: dict[str, Any]) -> Failure | None:
    why = data["stop_reason"]
    if why is None or not why.startswith("budget:"):
        return None
    return Failure(
        "budget_exceeded", f"{data['research']}: {why}", "raise the budget in the goal file and run it again: it goes on"
    )


def _turn(settings: Settings, records: Records, name: str, as_json: bool, answer: dict[str, Any] | None) -> int:
    """answer: a proposal from outside; None: only what is under way is brought to its end."""
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.research.driver import driver
    from eval_pipeline.research.reporting import status as status_of
    from eval_pipeline.research.reporting import verdict_of

    row = records.researches.find(name)
    require_isolation(settings, row.run.backend)
    with driver(settings, records, row.id, _engine(settings, records), _say) as held:
        due, step = held.advance(proposes=False), None
        if answer is not None:
            held.submit(answer)
            step = held.state.steps[-1].number
            due = held.advance(proposes=False)
        view = held.desk.view(held.state, due.step)
        verdict = None if step is None else verdict_of(held.state, step)
        data = {"do": due.do, "stop_reason": due.why or None, "submitted": step, "verdict": verdict, **view}
    failure = _out_of_budget(status_of(records, row))

    def people() -> None:
        if verdict is not None:
            click.echo(f"step {step}: {verdict}")
        click.echo(f"{row.id}: stopped: {due.why}" if due.do == "stop" else f"{row.id}: waits for a proposal (step {due.step})")
        click.echo(f"incumbent: step {view['incumbent']['step']} {json.dumps(view['incumbent']['config'])}")

    emit(data, as_json, people, failure)
    return 0 if failure is None else 3


def _engine(settings: Settings, records: Records) -> Callable[[ExperimentRow], None]:
    from eval_pipeline.cli.launch import Watch, launch
    from eval_pipeline.store.liveness import end_dead_engines

    def run(experiment: ExperimentRow) -> None:
        launched = launch(settings, experiment)
        if not experiment.name.endswith("-holdout"):
            note(f"{experiment.id}: {experiment.n_cells} cells")
            Watch(settings, records, experiment, launched, None).run()
            return
        note(f"the holdout: {experiment.n_cells} cells")  # how they end is nothing that whoever proposes should see
        try:
            launched.process.wait()
        except KeyboardInterrupt:
            records.ledger.request_cancel(experiment.id)
            note("cancelling")
            launched.process.wait()
        end_dead_engines(records.leases, settings)

    return run


def _say(row: Row) -> None:
    from eval_pipeline.cli.research_report import line_of

    if (line := line_of(row)) is not None:
        note(line)


def _show(records: Records, research: str, as_json: bool) -> int:
    from eval_pipeline.research.reporting import status as status_of

    data = status_of(records, records.researches.find(research))
    emit(data, as_json, lambda: _people(data))
    return 0


def _people(data: dict[str, Any]) -> None:
    from eval_pipeline.cli.research_report import show_status

    show_status(data)
