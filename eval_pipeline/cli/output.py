"""What the commands print: data on stdout, everything else on stderr; one envelope for programs."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from eval_pipeline.errors import EvalsError, NotFound

if TYPE_CHECKING:
    from eval_pipeline.specs.unreadable import UnreadableCase

Params = ParamSpec("Params")
Result = TypeVar("Result")

_LEAST_CUT = 24
# Control characters but for line ends and tabs, marks that turn the direction of writing, and halves of characters
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def json_option(command: Callable[Params, Result]) -> Callable[Params, Result]:
    return click.option("--json", "as_json", is_flag=True, help='Print {"ok", "data", "error"} for programs.')(command)


def dry_run_option(command: Callable[Params, Result]) -> Callable[Params, Result]:
    return click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")(command)


def examples(*lines: str) -> str:
    """For the end of a verb's help; click leaves the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def leaked_line(n_leaked: int) -> str:
    return f"{counted(n_leaked, 'sandbox is', 'sandboxes are')} leaked: nobody owns {'it. End it' if n_leaked == 1 else 'them. End them'}: evals sandbox reap [--backend modal]"


@dataclass(frozen=True)
class Failure:
    """What a command that has data to show could not do."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class NextPage:
    """cursor: of what comes after this page; None: nothing does."""

    cursor: str | None


def emit(
    data: Any, as_json: bool, show: Callable[[], None], failure: Failure | None = None, next_page: NextPage | None = None
) -> None:
    """`data` as the envelope, or `show` for people and the failure on stderr. next_page: of verbs that have pages."""
    if as_json:
        envelope = {"ok": failure is None, "data": data, "error": None if failure is None else asdict(failure)}
        if next_page is not None:
            envelope["next"] = next_page.cursor
        text = json.dumps(envelope, default=_plain, ensure_ascii=False)
        click.echo(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
        return
    show()
    if next_page is not None and next_page.cursor is not None:
        note(f"more: --cursor {next_page.cursor}")
    if failure is not None:
        _complain(failure.message, failure.hint)


def _complain(message: str, hint: str | None) -> None:
    """An error may tell what a program of the app's printed."""
    click.echo(f"{click.style('error', fg='red')}: {harmless(message)}", err=True)
    if hint:
        click.echo(f"  {harmless(hint)}", err=True)


def emit_error(error: BaseException, as_json: bool) -> int:
    """Print it and return the exit code."""
    if isinstance(error, EvalsError):
        code, hint, exit_code = error.code, error.hint, error.exit_code
    elif isinstance(error, click.ClickException):
        code, hint, exit_code = "usage", _usage_hint(error), 2
    else:
        code, hint, exit_code = "internal", "this is a defect of ours: the message above tells where", 1
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    if as_json:
        body = {"ok": False, "data": None, "error": {"code": code, "message": message, "hint": hint}}
        click.echo(json.dumps(body))
    else:
        _complain(message, hint)
    return exit_code


def _usage_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "evals" if context is None else context.command_path
    of_experiment = path.endswith(" leaderboard") or (" experiment " in path and not path.endswith((" run", " plan")))
    if of_experiment and isinstance(error, click.MissingParameter):
        return "`evals experiment list` lists them"
    listed = "the commands" if context is None or isinstance(context.command, click.Group) else "what it takes"
    return f"`{path} --help` lists {listed}"


def note(message: str) -> None:
    click.echo(harmless(message), err=True)


def count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def unreadable(wrong: Sequence[UnreadableCase]) -> Failure | None:
    """What was asked about and can't be read; None when all of it could be."""
    if not wrong:
        return None
    hint = "correct it; what no dataset of an experiment can select holds nothing up"
    return Failure("spec", "\n".join(str(one.error) for one in wrong), hint)


def note_unreadable(wrong: Sequence[UnreadableCase], about: str = "") -> None:
    for one in wrong:
        note(harmless(f"warning: {about}{one.error}"))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str | None = None,
    right: Sequence[str] = (),
    cut: str | None = None,
) -> None:
    """A table for people. Columns named in `right` hold numbers. cut: the one that is shortened so that no other wraps."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size((160, 24)).columns  # COLUMNS, else the terminal's, else 160
    texts = [[Text(shown(value)) for value in row] for row in rows]
    if cut is not None:
        at = columns.index(cut)
        widest = [max([len(name), *(row[n].cell_len for row in texts)]) for n, name in enumerate(columns)]
        others = sum(widest) - widest[at] + 2 * (len(columns) - 1)  # two blanks between columns
        room = max(_LEAST_CUT, width - others)
        width = max(width, others + room)  # what is pasted and searched for stays in one piece, also where the lines are too long
        for row in texts:
            row[at].truncate(room, overflow="ellipsis")
    grid = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in columns:
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=cut is not None)
    for row in texts:
        grid.add_row(*row)
    Console(file=sys.stdout, width=width, soft_wrap=False).print(grid)


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return harmless(str(value))


def harmless(text: str) -> str:
    """What an agent wrote, for a terminal: what would command it, or turn the order of what is read, appears as escapes."""
    return _UNSEEN.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def counted(n: int, one: str, many: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{n} {one if n == 1 else many}"


def alarm_line(text: str) -> str:
    return click.style(f"!! {harmless(text)}", fg="red", bold=True)


def unsafe_line(n_cells: int) -> str:
    cells = "1 cell" if n_cells == 1 else f"{n_cells} cells"
    return f"UNSAFE: {cells} ran without isolation (--unsafe-no-isolation); `evals cell show` says what was missing"


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def with_settings(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give the command the frozen settings as its first argument. Outside of any project nothing is made: NotFound."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Result:
        from eval_pipeline.settings import load_settings

        settings = load_settings()
        if settings.postgres_url is None and not settings.state_dir.is_dir() and not settings.worlds_dir.is_dir():
            hint = "run in the project's folder, or set EVALS_STATE_DIR (and EVALS_WORLDS_DIR)"
            raise NotFound(f"no state directory at {settings.state_dir}, nor a folder {settings.worlds_dir}", hint=hint)
        return command(settings, *args, **kwargs)

    return wrapped


def starts_sandboxes(command: Callable[..., Result]) -> Callable[..., Result]:
    """Below `with_settings`: an option that gives what EVALS_UNSAFE_NO_ISOLATION=1 gives."""

    @click.option(
        "--unsafe-no-isolation",
        "unsafe",
        is_flag=True,
        help="Where user namespaces are off: run sandboxes without one all the same. Needs root. Isolation is used where it can be.",
    )
    @functools.wraps(command)
    def wrapped(settings: Any, *args: Any, unsafe: bool, **kwargs: Any) -> Result:
        permitted = unsafe or settings.unsafe_no_isolation
        return command(replace(settings, unsafe_no_isolation=permitted), *args, **kwargs)

    return wrapped
