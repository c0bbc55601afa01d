"""DAGSTER_HOME and the environment of Dagster's processes. Imports no dagster: the CLI uses it too."""

import os
import shutil
from pathlib import Path

from eval_pipeline.settings import Settings, dagster_environment


def prepare_home(settings: Settings, postgres_url: str) -> dict[str, str]:
    """Put dagster.yaml into DAGSTER_HOME and return the environment that every Dagster process needs."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    source, target = Path(__file__).parents[2] / "dagster.yaml", settings.dagster_home / "dagster.yaml"
    if not target.exists() or target.read_bytes() != source.read_bytes():
        unfinished = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
    return {**os.environ, **dagster_environment(settings, postgres_url)}
