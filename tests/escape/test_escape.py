"""Nothing gets out. `make escape` prints the same as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from escape import escape_network
from escape.escape_all import in_cells, in_sandboxes, on_modal_sandboxes
from escape.escape_inside import ATTEMPTS
from escape.escape_stage import local_kind
from escape.escape_table import PLATFORM, Row, Verdict, last_line, table
from support.egress_attempts import PAST_THE_PROXY
from support.modal_loopback import LoopbackModal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
# What this kernel may lack, and what takes root to succeed
NOT_EVERYWHERE = (
    "writing /",
    "a kernel module",
    "crypto socket",
    "Bluetooth",
    "vsock",
    "bpf",
    "io_uring",
    "performance",
    "control groups",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def refused(rows: Iterable[Row]) -> None:
    """All of them; and as root nearly all could have succeeded."""
    rows = list(rows)
    assert [row for row in rows if row.verdict is Verdict.OUT] == []
    if os.getuid() == 0:
        vain = [row.what for row in rows if row.verdict is Verdict.NOT_SHOWN and row.ended != PLATFORM]
        assert [what for what in vain if not what.startswith(NOT_EVERYWHERE)] == []


async def test_in_sandboxes_of_this_machine(state_dir: Path) -> None:
    rows = await in_sandboxes(local_kind(state_dir), state_dir)
    assert {one.what for one in ATTEMPTS} <= {row.what for row in rows}
    refused(rows)


async def test_in_sandboxes_of_modal_with_what_is_the_platforms_own_left_out(
    state_dir: Path, modal_server: LoopbackModal
) -> None:
    rows = await on_modal_sandboxes(state_dir, modal_server)
    refused(rows)
    own = [row.what for row in rows if row.ended == PLATFORM]
    assert "IPv4 address, TCP" in own and "a file of the machine, by its path" in own
    assert sum(row.verdict is Verdict.REFUSED for row in rows) > 20


@pytest.mark.long
def test_in_cells_of_an_experiment(state_dir: Path) -> None:
    rows = in_cells(state_dir, "local", {})
    refused(rows)
    assert len(rows) == 8


@pytest.mark.long
def test_in_cells_on_modal(state_dir: Path, modal_server: LoopbackModal) -> None:
    rows = in_cells(state_dir, "modal", {"EVALS_MODAL_APP": "escape-cells", "EVALS_MODAL_CREATES_PER_S": "50"})
    refused(rows)
    assert sum(row.verdict is Verdict.REFUSED for row in rows) == 6


async def test_each_way_past_the_proxy_leads_somewhere_where_nothing_hinders_it(state_dir: Path) -> None:
    """What is refused in a sandbox stands in tests/gateway."""
    free = escape_network.where_nothing_hinders(state_dir)
    hindered = [one.what for one in PAST_THE_PROXY if escape_network.ended_as(one.inside, free[one.what])]
    assert [what for what in hindered if not what.startswith(NOT_EVERYWHERE)] == []


def test_the_table_shows_what_an_agent_named_as_text() -> None:
    rows = [
        Row("a\nb|c", "local", Verdict.OUT, "\x1b[31mred"),
        Row("x", "modal", Verdict.NOT_SHOWN, PLATFORM),
        Row("y", "local", Verdict.REFUSED, "EPERM"),
    ]
    assert table(rows).splitlines()[2] == "| a\\nb\\|c | local | OUT: \\x1b[31mred |  |"
    assert last_line(rows, ["local", "modal"]) == "escape tried=2 out=1 backends=local,modal"
