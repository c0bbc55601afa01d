"""Whole runs through the CLI. One state directory a worker, so that Postgres' data and the base layer are made once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.places import short_dir
from support.project import Project

from eval_pipeline.gateway.client import stop
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server


@pytest.fixture(scope="session")
def shared_state() -> Generator[Path]:
    with short_dir() as folder:
        state = folder / "state"
        state.mkdir()
        with embedded_server(Settings(state_dir=state, worlds_dir=folder)):  # keeps the server for the session
            yield state
        stop(state)


@pytest.fixture
def project(shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, shared_state)


@pytest.fixture
def lone_project(state_dir: Path) -> Generator[Project]:
    """With a state directory of its own, for tests that break it."""
    with short_dir() as root:
        yield Project(root, state_dir)
        stop(state_dir)
