from __future__ import annotations

import asyncio

import click

from eval_pipeline.cli.output import dry_run_option, emit, json_option, table, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Sandboxes on this machine, or on Modal."""


backend_option = click.option(
    "--backend", type=click.Choice(["local", "modal"]), default="local", show_default=True, help="Where to look."
)


@command.command("list")
@backend_option
@json_option
@with_settings
def list_sandboxes(settings: Settings, backend: str, as_json: bool) -> None:
    """All sandboxes there; those of another installation are shown and never touched."""
    from eval_pipeline.runner.reaper import survey
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        found = asyncio.run(survey(settings, records, backend))
    rows = [
        {
            "sandbox": s.info.name,
            "alive": s.info.alive,
            "owner": s.owner,
            "purpose": s.info.tags.get("purpose"),
            "cell": s.info.tags.get("cell"),
        }
        for s in found
    ]
    columns = ["sandbox", "alive", "owner", "purpose", "cell"]
    emit(rows, as_json, lambda: table(columns, [[row[c] for c in columns] for row in rows]))


@command.command("reap")
@backend_option
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="End only what nobody has owned for so long; it is waited for.",
)
@dry_run_option
@json_option
@with_settings
def reap(settings: Settings, backend: str, grace_s: float, dry_run: bool, as_json: bool) -> None:
    """End this installation's sandboxes that no open attempt, build, warm row or person owns. Those of others are never touched."""
    from eval_pipeline.runner.reaper import reap as reap_all
    from eval_pipeline.runner.reaper import unowned
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        reaped = asyncio.run(
            unowned(settings, records, backend) if dry_run else reap_all(settings, records, backend, grace_s=grace_s, wait=True)
        )
        leaked = records.views.leaked()

    def people() -> None:
        done = f"would be ended, if nobody owns them for {grace_s:g} s more" if dry_run else "ended"
        click.echo(f"{len(reaped.ended)} sandboxes {done}" + "".join(f"\n  {name}" for name in reaped.ended))
        if reaped.waiting:
            click.echo(f"{len(reaped.waiting)} more belong to nobody and could not be ended yet: {', '.join(reaped.waiting)}")
        if reaped.foreign:
            click.echo(f"{len(reaped.foreign)} of other installations were left alone: {', '.join(reaped.foreign)}")

    emit(
        {
            "reaped": reaped.ended,
            "waiting": reaped.waiting,
            "foreign": reaped.foreign,
            "leaked_sandboxes": leaked,
            "dry_run": dry_run,
        },
        as_json,
        people,
    )
