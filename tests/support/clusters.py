"""PostgreSQL's files, made once in a worker process and copied: what initdb writes and has on disk takes longer than most tests."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import psycopg2

from eval_pipeline.host import own_state_dir
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server


def with_cluster(state_dir: Path) -> Path:
    """The state directory, made when absent, as a first command leaves it that asked the ledger nothing: there is no schema yet."""
    own_state_dir(state_dir)
    subprocess.run(["cp", "-a", str(_made()), str(state_dir / "postgres")], check=True)
    return state_dir


@functools.cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="evt-", dir="/tmp"))
    folder.chmod(0o711)
    atexit.register(shutil.rmtree, folder)
    with embedded_server(Settings(state_dir=folder, worlds_dir=folder)) as url:
        for name in ("fsync", "full_page_writes"):  # nobody needs the copies after a power cut
            execute(url, f"ALTER SYSTEM SET {name} = off")
    (folder / "postgres/socket_dir").unlink()  # where the copies' servers are not
    return folder / "postgres"


def execute(url: str, *statements: str) -> None:
    with closing(psycopg2.connect(plain(url))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def plain(url: str) -> str:
    """As psycopg2 itself wants it."""
    return url.replace("postgresql+psycopg2", "postgresql", 1)
