"""One state directory for all: the app's base layer, its image and the worlds' layers are made once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
from desk_runs import Endpoint, Machine
from support.clusters import with_cluster
from support.places import short_dir

from eval_pipeline.gateway.client import stop

WORLDS = Path(__file__).parents[2] / "worlds_src" / "worlds"


@pytest.fixture(scope="session")
def desk_state() -> Generator[Path]:
    with short_dir() as folder:
        state = with_cluster(folder / "state")
        yield state
        stop(state)


@pytest.fixture(scope="session")
def machine(desk_state: Path) -> Generator[Machine]:
    made = Machine(desk_state)
    yield made
    made.close()


@pytest.fixture(scope="session")
def worlds() -> Generator[Path]:
    """A folder for worlds that sandboxes can read."""
    with short_dir() as folder:
        yield folder


@pytest.fixture(scope="session")
def harbour(worlds: Path) -> Path:
    return _snapshot("harbour-spa", worlds)


@pytest.fixture(scope="session")
def lock_delay(worlds: Path) -> Path:
    return _snapshot("lock-delay", worlds)


def _snapshot(name: str, worlds: Path) -> Path:
    """What a sandbox gets of a world: its four parts."""
    target = worlds / name
    shutil.copytree(WORLDS / name, target, ignore=shutil.ignore_patterns("cases", "world.yaml"))
    return target


@pytest.fixture
def made_world(worlds: Path) -> Callable[[Mapping[str, bytes]], Path]:
    def make(documents: Mapping[str, bytes]) -> Path:
        world = Path(tempfile.mkdtemp(dir=worlds))
        world.chmod(0o755)
        (world / "documents").mkdir()
        for name, data in documents.items():
            (world / "documents" / name).write_bytes(data)
        return world

    return make


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()
