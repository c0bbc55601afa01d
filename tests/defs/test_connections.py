"""Dagster's connections of an engine, as Postgres sees them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from eval_pipeline.defs.connections import keeping_connections

pytestmark = pytest.mark.slow

OTHERS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def test_they_are_kept_and_made_anew_when_the_server_ends_them(empty_database_url: str, tmp_path: Path) -> None:
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

    (tmp_path / "dagster.yaml").write_text(f"storage: {{postgres: {{postgres_url: {empty_database_url!r}}}}}\n")
    server = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)

    def connections() -> set[int]:
        with server.connect() as connection:
            return set(connection.scalars(sa.text(OTHERS)))

    def come_to(count: int) -> set[int]:
        """A backend is gone a little after its client."""
        deadline = time.monotonic() + 20
        while len(found := connections()) != count:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(tmp_path))) as instance:
        instance.get_runs()
        come_to(0)  # what Dagster does by itself
        with keeping_connections(instance):
            for _ in range(3):
                instance.add_dynamic_partitions("cells", ["a"])
                assert instance.get_runs() == []
            kept = come_to(2)  # of runs, of events
            instance.get_runs()
            assert connections() == kept
            with server.connect() as connection:
                for pid in kept:
                    connection.scalar(sa.select(sa.func.pg_terminate_backend(pid, 5000)))
            assert instance.get_dynamic_partitions("cells") == ["a"]
            assert instance.get_runs() == []
            assert come_to(2).isdisjoint(kept)
        come_to(0)
