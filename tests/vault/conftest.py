from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from eval_pipeline.vault.values import Values


@pytest.fixture
def swept(state_dir: Path) -> Generator[None]:
    """Values may be kept outside of the state directory."""
    yield
    if (state_dir / "secrets").is_dir():
        shutil.rmtree(Values(state_dir).folder)
