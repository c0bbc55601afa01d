"""An engine that is started ahead of its word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eval_pipeline.cli.launch import engine_ahead, log_of
from eval_pipeline.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", worlds_dir=tmp_path / "worlds_src")


def test_an_engine_that_is_told_nothing_is_ended(settings: Settings) -> None:
    for _ in range(2):  # one that was never told leaves nothing that keeps the next from being started ahead
        with pytest.raises(RuntimeError, match="refused"), engine_ahead(settings, "e-1") as ahead:
            assert ahead is not None
            assert ahead.process.poll() is None
            raise RuntimeError("refused")
        assert ahead is not None
        assert ahead.process.returncode == -signal.SIGKILL
    assert (settings.state_dir / "logs").is_dir()
    assert list(settings.state_dir.rglob("*.lock")) == []


def test_a_state_directory_that_cannot_be_used_is_left_to_who_opens_the_ledger(settings: Settings) -> None:
    settings.state_dir.write_text("no directory")
    with engine_ahead(settings, "e-1") as ahead:
        assert ahead is None


def test_none_is_started_ahead_where_one_has_worked(settings: Settings) -> None:
    log = log_of(settings, "e-1")
    log.parent.mkdir(parents=True)
    log.write_text("done\n")
    with engine_ahead(settings, "e-1") as ahead:
        assert ahead is None


@pytest.mark.slow
def test_an_engine_whose_starter_is_gone_begins_nothing(settings: Settings) -> None:
    command = [sys.executable, "-m", "eval_pipeline.defs.launcher", "e-1", "--when-told"]
    env = {**os.environ, "EVALS_STATE_DIR": str(settings.state_dir)}
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not settings.state_dir.exists()
