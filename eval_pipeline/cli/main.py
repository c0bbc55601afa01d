"""`evals`: one file a noun, each imported only when it is used."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback

import click

from eval_pipeline.cli.output import emit_error

NOUNS = {
    "demo": ("demo", "Run the demo experiment and print its leaderboard."),
    "up": ("up", "Start Postgres and the Dagster UI on this machine."),
    "doctor": ("doctor", "Say what works here, what doesn't, and the remedy."),
    "world": ("world", "Worlds: new, list, check, open, ports, save, close, diff, snapshot."),
    "case": ("case", "Cases: new, from-chat, try, list, show, check."),
    "app": ("app", "The application under evaluation: check."),
    "dataset": ("dataset", "Datasets: list, show."),
    "experiment": ("experiment", "Experiments: plan, run, list, status, cells, rerun, cancel, archive, restore."),
    "budget": ("budget", "What this installation spends this month, and what it may."),
    "cell": ("cell", "One cell: show, transcript, logs, files, diff, quarantine, shell."),
    "score": ("score", "Judge stored results again: another judge, the newest rubric. No agent is run."),
    "judge": ("judge", "Judges: review, label, calibrate, limits."),
    "leaderboard": ("leaderboard", "Arms side by side, with what is missing."),
    "compare": ("compare", "Two arms on the cases they share: what differs, and whether the data can tell."),
    "gate": ("gate", "May a change pass? Base and head on the same cases: no worse by more than a margin."),
    "report": ("report", "The whole result as pages for a browser, with plots and a page a cell."),
    "image": ("image", "What cells stand on: list, status, build, warm, gc."),
    "secrets": ("secrets", "Secrets that apps declare: list, sync, policy. Never a value."),
    "research": ("research", "Make an app better within a budget, and have it confirmed on worlds kept apart."),
    "artifact": ("artifact", "Stored artifacts: gc."),
    "sandbox": ("sandbox", "Sandboxes on this machine: list, reap."),
    "worker": ("worker", "Workers that take work off the engines: persist."),
    "benchmark": ("benchmark", "Arms of many experiments in one table, over months: add, show, list, remove."),
    "export": ("exporting", "The scored table of an experiment, as Parquet, CSV or JSON."),
    "skill": ("skill", "What a coding agent needs to know to drive this: install."),
    "import": ("importing", "Published benchmarks as worlds and cases; results of other systems (Inspect, Harbor) as tables."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        module = importlib.import_module(f"eval_pipeline.cli.{NOUNS[cmd_name][0]}")
        return module.command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            close = difflib.get_close_matches(args[0], NOUNS, 1, 0.5)
            nearest = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{nearest}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in NOUNS.items()])


@click.group(
    cls=_Lazy, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="eval-pipeline", prog_name="evals", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Evaluate agents inside whole applications: cases x arms x trials, each cell in its own isolated sandbox."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _open_standard_streams() -> None:
    """Of a caller that closed some: the next file opened would take the number, and be read as what a person typed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


def main() -> None:
    _open_standard_streams()
    as_json = "--json" in sys.argv[1:]
    try:
        code = cli.main(args=sys.argv[1:], prog_name="evals", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:  # noqa: BLE001 - the CLI's boundary
        code = emit_error(error, as_json)
        if code == 1 and not hasattr(error, "hint"):
            traceback.print_exc()
        sys.exit(code)
