"""What is read from the environment, and what Dagster's processes are handed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings, dagster_environment, load_settings


@pytest.mark.parametrize("permitted", [True, False])
def test_a_permission_reaches_dagsters_processes_and_nothing_else_changes(tmp_path: Path, permitted: bool) -> None:
    settings = Settings(
        state_dir=tmp_path,
        worlds_dir=tmp_path / "worlds_src",
        secrets_path=tmp_path / "secrets.env",
        unsafe_no_isolation=permitted,
    )
    outer = {"EVALS_UNSAFE_NO_ISOLATION": "1"}  # what a shell may have said
    assert load_settings({**outer, **dagster_environment(settings, "postgresql://u@h/d")}, tmp_path) == settings


@pytest.mark.parametrize(("value", "permitted"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_isolation_is_given_up_by_1_only(tmp_path: Path, value: str | None, permitted: bool) -> None:
    environ = {} if value is None else {"EVALS_UNSAFE_NO_ISOLATION": value}
    assert load_settings(environ, tmp_path).unsafe_no_isolation is permitted


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1"])
def test_any_other_word_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(SpecError, match="EVALS_UNSAFE_NO_ISOLATION"):
        load_settings({"EVALS_UNSAFE_NO_ISOLATION": value}, tmp_path)
