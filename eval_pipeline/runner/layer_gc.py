"""What of the layers is still needed: by sandboxes that live, by experiments that are not done, by the next commit."""

from __future__ import annotations

import asyncio

from eval_pipeline.environment.collecting import Collector, Removed, with_chains
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.services import Services
from eval_pipeline.store.layers import BASE, IMAGE, LayerRow

MIN_UNUSED_S = 3600.0
"""A cell that is being set up has used its layers within this time, and no sandbox of it lives yet."""


async def collect(services: Services, unused_s: float, *, dry_run: bool = False) -> list[Removed]:
    """Remove what nobody used for so long and nobody needs. Raises SpecError below an hour."""
    if unused_s < MIN_UNUSED_S:
        raise SpecError(
            f"layers unused for {unused_s:g} s may be those of a cell that is being set up", hint="write 1h, or a longer time"
        )
    rows, backend = services.layers.book.rows, services.backend

    async def spare() -> set[str]:
        everything = await asyncio.to_thread(rows.all)
        named = await _stood_on(services)
        named |= await asyncio.to_thread(_of_experiments, services, everything)
        # What no app owns costs no build's time, and other installations may stand on the same
        named |= {row.key for row in everything if row.kind == BASE}
        newest = {row.app: row.key for row in reversed(everything) if row.kind == IMAGE}
        return with_chains(named | set(newest.values()), everything)

    return await Collector(backend, rows, services.layers.locks, spare).collect(unused_s, dry_run=dry_run)


async def _stood_on(services: Services) -> set[str]:
    """What sandboxes say that they stand on, or are built as: cells, builds, warm ones, those that people keep open."""
    infos = [info for info in await services.backend.list() if info.alive]
    return {info.tags[tag] for info in infos for tag in ("stands_on", "layer") if tag in info.tags}


def _of_experiments(services: Services, rows: list[LayerRow]) -> set[str]:
    unfinished = services.views.unfinished()
    needed: set[str] = set()
    for experiment in services.ledger.experiments():
        if experiment.id in unfinished:
            trees, worlds = {arm.tree for arm in experiment.run.arms}, {None, *experiment.run.worlds.values()}
            needed |= {row.key for row in rows if row.tree in trees and row.world in worlds}
    return needed
