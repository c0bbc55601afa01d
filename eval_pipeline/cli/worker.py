from __future__ import annotations

import click

from eval_pipeline.cli.output import emit, json_option, note, with_settings
from eval_pipeline.settings import MIN_MEMORY_MIB, Settings


@click.group()
def command() -> None:
    """Workers that take a part of the work off the engines, on this machine or another."""


@command.command("persist")
@click.option("--limit", type=click.IntRange(1), default=2, show_default=True, help="How many outputs at once.")
@click.option(
    "--memory-mib", type=click.IntRange(MIN_MEMORY_MIB), help="What reading one may take; EVALS_PERSIST_MEMORY_MIB, or 1024."
)
@click.option("--once", is_flag=True, help="Leave when nothing is left to take.")
@json_option
@with_settings
def persist(settings: Settings, limit: int, memory_mib: int | None, once: bool, as_json: bool) -> None:
    """Read the outputs that engines hand over, and end their attempts.

    Until SIGTERM or Ctrl-C; engines hand over with EVALS_PERSIST=both or workers. It needs the engines' ledger (EVALS_POSTGRES_URL) and their artifact store: s3://... or a shared file:///directory.
    """
    import asyncio
    import logging
    from dataclasses import replace

    from eval_pipeline.runner.persist_worker import PersistWorker
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.held import log_redacted

    logging.getLogger("alembic").setLevel(logging.WARNING)
    log_redacted(settings.state_dir)
    settings = replace(settings, persist_memory_mib=memory_mib or settings.persist_memory_mib)

    async def run() -> int:
        with open_records(settings, patience_s=120.0) as records, open_services(settings, records) as services:
            note(f"persists {limit} outputs at once, each within {settings.persist_memory_mib} MiB")
            return await PersistWorker(services, limit).run(once=once)

    n_ended = asyncio.run(run())
    emit({"n_ended": n_ended}, as_json, lambda: click.echo(f"{n_ended} attempts were brought to their end"))
