from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from environment.workshop import Workshop
from support.places import short_dir


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shop_state() -> Generator[Path]:
    """One base layer for all of a module."""
    with short_dir() as folder:
        yield folder


@pytest.fixture
def workshop(shop_state: Path, state_dir: Path, database_url: str) -> Generator[Workshop]:
    made = Workshop(state_dir, shop_state, database_url)
    yield made
    made.database.close()
