from __future__ import annotations

from pathlib import Path

import click

from eval_pipeline.cli.output import emit, json_option

SOURCE = Path(__file__).with_name("SKILL.md")


@click.group()
def command() -> None:
    """What a coding agent needs to know to use this: a file it finds by itself."""


@command.command("install")
@click.argument("folder", metavar="[DIR]", default=".claude/skills", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Over a file there that differs.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option
def install(folder: Path, force: bool, dry_run: bool, as_json: bool) -> None:
    """Write evals/SKILL.md below DIR, where coding agents look for skills (.claude/skills).

    The same again changes nothing; a file that differs is left without --force.
    """
    from eval_pipeline.errors import SpecError

    target, text = folder / "evals" / "SKILL.md", SOURCE.read_text(encoding="utf-8")
    there = target.read_text(encoding="utf-8") if target.is_file() else None
    if there not in (None, text) and not force:
        raise SpecError(
            f"{target} is there and differs", hint="`evals skill install --force` writes over it; or name another DIR"
        )
    written = there != text and not dry_run
    if written:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    said = "is written" if written else "would be written" if there != text else "is there already"
    data = {"file": str(target), "written": written, "dry_run": dry_run}
    emit(data, as_json, lambda: click.echo(f"{target} {said}"))
