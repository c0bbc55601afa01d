"""Whole runs through the CLI, by default in the state directory that a worker's tests share."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.clusters import with_cluster
from support.places import short_dir
from support.project import Project

from eval_pipeline.gateway.client import stop


@pytest.fixture
def project(shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, shared_state)


@pytest.fixture
def lone_project(state_dir: Path) -> Generator[Project]:
    """With a state directory of its own, for tests that break it."""
    with short_dir() as root:
        yield Project(root, with_cluster(state_dir))
        stop(state_dir)
