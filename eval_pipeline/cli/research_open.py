"""Beginning a research, or going on with it: what is asked first, and the process that drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import note
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import Records


def opened(settings: Settings, records: Records, goal: str, *, fresh: bool, yes: bool) -> str:
    """The research's id: locked now, or gone on with. Raises SpecError, click.Abort."""
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.host import login
    from eval_pipeline.research.opening import begin, record
    from eval_pipeline.specs.library import Library
    from eval_pipeline.vault.delivery import Secrets

    begun = begin(Library(settings.worlds_dir), goal, records, settings.user or login(), fresh=fresh)
    require_isolation(settings, begun.goal.backend)
    Secrets(settings, records).require(begun.research.run.arms[0])
    _confirm(records, begun.research.id, begun.goal.budget.cost_usd, yes=yes)
    found = record(begun, records)  # last: `next` and `submit` ask nobody about what is there
    if found.resumed:
        note(f"{found.row.id} goes on with what was locked; --fresh begins anew if the app has moved since")
    for line in found.notes:
        note(f"note: {line}")
    return found.row.id


def to_confirm(records: Records, research: str, most: float | None) -> SpecError | None:
    """What it needs somebody's word for, as an error for where nobody can be asked; None: it may start."""
    from eval_pipeline.errors import SpecError

    above = records.spending.month().confirm_above_usd
    if above is None or (most is not None and most <= above):
        return None
    sum_ = "any sum: its budget names no cost_usd" if most is None else f"{most:g} USD"
    hint = "say so with --yes, write a smaller budget.cost_usd, or change the threshold: `evals budget --confirm-above USD`"
    return SpecError(f"{research} may cost {sum_}, and a run above {above:f} USD must be confirmed", hint=hint)


def _confirm(records: Records, research: str, most: float | None, *, yes: bool) -> None:
    import sys

    error = None if yes else to_confirm(records, research, most)
    if error is None:
        return
    if not sys.stdin.isatty():
        raise error
    click.confirm(f"{str(error).partition(', and ')[0]}. Run it?", abort=True, err=True)


def detach(settings: Settings, words: list[str], research: str) -> None:
    """`words` as a process of its own that outlives this one."""
    import subprocess
    import sys

    log = settings.state_dir / "logs" / f"research-{research}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    unsafe = ["--unsafe-no-isolation"] if settings.unsafe_no_isolation else []
    program = [sys.executable, "-m", "eval_pipeline.cli", "research", *words, *unsafe]
    with log.open("ab") as sink:
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    note(f"{research}: driven by process {process.pid}; its log: {log}")
