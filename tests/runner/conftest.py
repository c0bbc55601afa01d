"""A ledger, and a second pair of hands on it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from support.ledgers import Books

from eval_pipeline.settings import Settings
from eval_pipeline.store.records import Records, open_records


@pytest.fixture
def records(settings: Settings) -> Generator[Records]:
    with open_records(settings) as opened:
        yield opened


@pytest.fixture
def books(records: Records, database_url: str) -> Generator[Books]:
    made = Books(database_url)
    yield made
    made.database.close()
