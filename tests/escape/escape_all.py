"""Everything that is tried, on one backend."""

from __future__ import annotations

import secrets
from pathlib import Path

from escape import escape_left, escape_network
from escape.escape_stage import attempts, local_kind, modal_kind, stage
from escape.escape_table import Row
from support.modal_loopback import LoopbackModal


async def on_local(folder: Path) -> list[Row]:
    walls, network = folder / "walls", folder / "network"
    for path in (walls, network):
        path.mkdir(mode=0o711)
    async with stage(local_kind(walls), walls) as made:
        rows = [*await attempts(made), *await escape_left.rows(made)]
    return rows + await escape_network.local_rows(network)


async def on_modal(folder: Path, server: LoopbackModal) -> list[Row]:
    app = f"escape-{secrets.token_hex(4)}"
    async with stage(modal_kind(folder, server, app), folder) as made:
        (asked,) = [one for one in server.sandboxes(app) if one["name"] == made.sandbox.name]
        rows = [*await attempts(made), *await escape_left.rows(made)]
    return rows + escape_network.modal_rows(asked)
