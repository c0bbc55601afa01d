from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.clusters import with_cluster
from support.places import short_dir
from support.project import Project
from ui.served import Served

from eval_pipeline.gateway.client import stop

AGENT = """
echo s >> "$EVALS_OUTPUT/starts"
grep -q "Answer long" "$EVALS_CASE" && sleep 900
grep -q "Answer slow" "$EVALS_CASE" && sleep 120
grep -q "Answer doze" "$EVALS_CASE" && sleep 30
grep -q "Answer nap" "$EVALS_CASE" && sleep 6
answer yes
"""
RESTORE = """#!/bin/sh
[ -f /world/documents/broken.txt ] && { echo "no such table: matters" >&2; exit 4; }
exit 0
"""


@pytest.fixture(scope="module")
def state() -> Generator[Path]:
    with short_dir() as folder:
        path = with_cluster(folder / "state")
        yield path
        stop(path)


@pytest.fixture(scope="module")
def project(state: Path) -> Generator[Project]:
    """Its world `bad` can't be restored, which is an infrastructure failure; `long`, `slow`, `doze` and `nap` are cases of 900, 120, 30 and 6 s."""
    with short_dir() as root:
        made = Project(root, state)
        made.world("bad", {"broken.txt": "x\n"})
        made.manifest(restore=["bin/restore"])
        made.commit({"bin/restore": RESTORE})
        made.agent(AGENT)
        yield made


@pytest.fixture(scope="module")
def served(project: Project) -> Generator[Served]:
    """`evals up`, running before any experiment is known."""
    up = Served(project)
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()
