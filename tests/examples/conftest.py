"""One machine a worker: the app's image and the worlds' layers are made once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
from desk_runs import Endpoint, Machine
from support.places import short_dir

WORLDS = Path(__file__).parents[2] / "worlds_src" / "worlds"


@pytest.fixture(scope="session")
def machine() -> Generator[Machine]:
    with short_dir() as folder:
        made = Machine(folder)
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
