"""DAGSTER_HOME and the environment of Dagster's processes. Imports no dagster: the CLI uses it too."""

import os
import shutil
from pathlib import Path

from sqlalchemy.engine import make_url

from eval_pipeline.settings import Settings, dagster_environment
from eval_pipeline.store.database import PAUSED_S


def prepare_home(settings: Settings, postgres_url: str) -> dict[str, str]:
    """Put dagster.yaml into DAGSTER_HOME and return the environment that every Dagster process needs."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    source, target = Path(__file__).parents[2] / "dagster.yaml", settings.dagster_home / "dagster.yaml"
    if not target.exists() or target.read_bytes() != source.read_bytes():
        unfinished = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
    return {**os.environ, **dagster_environment(settings, _in_public(postgres_url))}


def _in_public(postgres_url: str) -> str:
    """Dagster's tables stay out of the ledger's schema, which is the role's own when the role is called `evals`. A paused process
    keeps its locks there no longer than in the ledger."""
    url = make_url(postgres_url)
    if "options" not in url.query:
        url = url.update_query_dict({"options": f"-csearch_path=public -cidle_in_transaction_session_timeout={PAUSED_S}s"})
    return url.render_as_string(hide_password=False)
