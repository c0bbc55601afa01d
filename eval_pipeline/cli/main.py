"""`evals`: one file a noun, each imported only when it is used."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback

import click

from eval_pipeline.cli.output import emit_error

GROUPS = {
    "Start": {
        "demo": ("demo", "A small experiment and its leaderboard; costs nothing."),
        "doctor": ("doctor", "What works on this machine, what doesn't, and the remedy."),
        "up": ("up", "Start Postgres and the Dagster UI here."),
        "skill": ("skill", "Teach a coding agent to use all this."),
    },
    "Author": {
        "world": ("world", "The matters that agents work on: new, check, open, save."),
        "case": ("case", "A task in a world with its rubric: new, from-chat, check, try."),
        "dataset": ("dataset", "Which cases belong together."),
        "app": ("app", "The application under evaluation: check, dependencies."),
        "secrets": ("secrets", "Secrets that the app declares; never a value."),
        "import": ("importing", "Published benchmarks as cases; results of Inspect and Harbor."),
    },
    "Run": {
        "experiment": ("experiment", "Cases x arms x trials: plan, run, status, cells, rerun, cancel."),
        "research": ("research", "Improve the app within a budget, confirmed on worlds kept apart."),
        "budget": ("budget", "What is spent this month, and what may be."),
    },
    "Look": {
        "leaderboard": ("leaderboard", "Arms side by side, with intervals and what is missing."),
        "cell": ("cell", "One cell: answer, verdicts, transcript, logs, files, a shell."),
        "report": ("report", "The whole result as pages for a browser."),
        "export": ("exporting", "The scored table as Parquet, CSV or JSON."),
    },
    "Judge": {
        "score": ("score", "Judge stored results again; no agent runs."),
        "judge": ("judge", "Can a judge be trusted? review, label, calibrate, limits."),
    },
    "Decide": {
        "compare": ("compare", "Two arms on shared cases: what differs, and can the data tell?"),
        "gate": ("gate", "May a change pass? Only if it is shown to be no worse."),
        "benchmark": ("benchmark", "Arms of many experiments in one table, over months."),
    },
    "Keep": {
        "sandbox": ("sandbox", "Which sandboxes live, and end those that nobody owns."),
        "image": ("image", "What cells stand on: build, warm, remove."),
        "artifact": ("artifact", "Remove stored files that nothing refers to."),
        "worker": ("worker", "Processes that take work off the engines."),
    },
}
NOUNS = {noun: entry for group in GROUPS.values() for noun, entry in group.items()}
"""Noun -> its module here, and a line about it."""


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
        widest = max(map(len, NOUNS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), about) for name, (_, about) in group.items()])


@click.group(
    cls=_Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  evals demo                         a first result, in minutes
  evals experiment plan demo         what a run would take, before it is paid
  evals experiment run demo --wait   run it; the same again resumes
  evals leaderboard demo             who did best, as far as one can tell

Every verb takes --json; what spends, ends or deletes mostly takes --dry-run. `evals NOUN -h` and `evals NOUN VERB -h` say more.""",
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
