"""Everything that is tried, on one backend."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from escape import escape_cells, escape_left, escape_network
from escape.escape_stage import Kind, attempts, local_kind, modal_kind, stage
from escape.escape_table import Row
from support.modal_loopback import LoopbackModal
from support.project import Project

from eval_pipeline.gateway.client import stop
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server


async def in_sandboxes(kind: Kind, folder: Path) -> list[Row]:
    async with stage(kind, folder) as made:
        return [*await attempts(made), *await escape_left.rows(made)]


async def on_modal_sandboxes(folder: Path, server: LoopbackModal) -> list[Row]:
    app = f"escape-{secrets.token_hex(4)}"
    async with stage(modal_kind(folder, server, app), folder) as made:
        (asked,) = [one for one in server.sandboxes(app) if one["name"] == made.sandbox.name]
        rows = [*await attempts(made), *await escape_left.rows(made)]
    return rows + escape_network.modal_rows(asked)


def in_cells(folder: Path, backend: str, environ: Mapping[str, str]) -> list[Row]:
    """Of an experiment with a state directory of its own."""
    root, state = folder / "project", folder / "state"
    for path in (root, state):
        path.mkdir(mode=0o711)
    with embedded_server(Settings(state_dir=state, worlds_dir=root)) as url:
        rows = escape_cells.rows(Project(root, state, environ), backend, url)
        stop(state)
    return rows


def on_local(folder: Path) -> list[Row]:
    walls, network, cells = (folder / name for name in ("walls", "network", "cells"))
    for path in (walls, network, cells):
        path.mkdir(mode=0o711)
    rows = asyncio.run(in_sandboxes(local_kind(walls), walls))
    rows += asyncio.run(escape_network.local_rows(network))
    return rows + in_cells(cells, "local", {})


def on_modal(folder: Path, server: LoopbackModal) -> list[Row]:
    walls, cells = folder / "walls", folder / "cells"
    for path in (walls, cells):
        path.mkdir(mode=0o711)
    rows = asyncio.run(on_modal_sandboxes(walls, server))
    return rows + in_cells(
        cells, "modal", {"EVALS_MODAL_APP": f"cells-{secrets.token_hex(4)}", "EVALS_MODAL_CREATES_PER_S": "50"}
    )
