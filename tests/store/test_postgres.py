"""The server's life, seen from outside: /proc, other processes, other clients."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from support.clusters import with_cluster

from eval_pipeline.errors import LedgerUnavailable, SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store import looking, postgres
from eval_pipeline.store.postgres import embedded_server, normalised, restart_if_down, server_status

pytestmark = pytest.mark.slow

HOLDER = """
import sys
from pathlib import Path
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server, server_status
settings = Settings(state_dir=Path(sys.argv[1]), worlds_dir=Path("/"))
print("ready", flush=True)
sys.stdin.readline()
with embedded_server(settings) as url:
    print(server_status(settings).pid, url, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that uses the server until `leave` or `kill`."""

    def __init__(self, state_dir: Path) -> None:
        argv = [sys.executable, "-c", HOLDER, str(state_dir)]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def enter(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")

    def server_pid(self) -> int:
        return int(self._line().split()[0])

    def leave(self) -> int:
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def embedded(state_dir: Path) -> Generator[Settings]:
    """Its cluster is there, and was stopped."""
    yield from _ended_after(with_cluster(state_dir))


@pytest.fixture
def fresh(state_dir: Path) -> Generator[Settings]:
    """Nobody has started a server there."""
    yield from _ended_after(state_dir)


def _ended_after(state_dir: Path) -> Generator[Settings]:
    settings = Settings(state_dir=state_dir, worlds_dir=state_dir)
    yield settings
    if server_status(settings).running:  # a test that failed, or one that killed the users
        with embedded_server(settings):
            pass


def query(url: str, statement: str) -> Any:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        result = connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def running_pid(settings: Settings) -> int:
    pid = server_status(settings).pid
    assert pid is not None
    return pid


def test_starts_serves_and_stops(fresh: Settings) -> None:
    assert server_status(fresh).running is False
    with embedded_server(fresh) as url:
        assert query(url, "SELECT current_database()") == "evals"
        assert query(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
        query(url, "CREATE TABLE kept AS SELECT 'ü' AS word")
        pid = running_pid(fresh)
        assert alive(pid)
    assert not alive(pid)
    assert not list(fresh.state_dir.rglob(".s.PGSQL*"))
    with embedded_server(fresh) as url:
        assert query(url, "SELECT word FROM kept") == "ü"


def test_what_the_server_promises(fresh: Settings) -> None:
    with embedded_server(fresh) as url:
        shown = {
            name: query(url, f"SHOW {name}")
            for name in ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "wal_level", "server_encoding")
        }
        assert shown == {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "listen_addresses": "",
            "wal_level": "minimal",
            "server_encoding": "UTF8",
        }
        assert int(query(url, "SHOW max_connections")) >= 200
        assert query(url, "SHOW timezone") == "UTC"


def test_no_tcp_port(embedded: Settings) -> None:
    with embedded_server(embedded):
        descriptors = Path(f"/proc/{running_pid(embedded)}/fd")
        sockets = {
            link.removeprefix("socket:[")[:-1]
            for fd in descriptors.iterdir()
            if (link := str(fd.readlink())).startswith("socket")
        }
        kinds = {
            kind: {line.split()[column] for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]} & sockets
            for kind, column in {"tcp": 9, "tcp6": 9, "udp": 9, "unix": 6}.items()
            if Path(f"/proc/net/{kind}").exists()
        }
    assert kinds.pop("unix")
    assert not any(kinds.values())


def test_two_hundred_connections(embedded: Settings) -> None:
    with embedded_server(embedded) as url:
        engine = sa.create_engine(url, pool_size=190)
        connections = [engine.connect() for _ in range(190)]
        assert len(connections) == 190
        for connection in connections:
            connection.close()
        engine.dispose()


def test_a_server_without_a_free_connection_is_still_running(embedded: Settings) -> None:
    with embedded_server(embedded) as url:
        engine = sa.create_engine(url, pool_size=300)
        connections: list[sa.Connection] = []
        with pytest.raises(OperationalError, match="too many clients"):
            connections.extend(engine.connect() for _ in range(250))
        assert server_status(embedded).running
        assert restart_if_down(embedded)
        engine.dispose()


def test_the_last_user_stops_it(embedded: Settings) -> None:
    first, second = Holder(embedded.state_dir), Holder(embedded.state_dir)
    first.enter()
    pid = first.server_pid()
    second.enter()
    assert second.server_pid() == pid
    assert first.leave() == 0
    assert alive(pid)
    with embedded_server(embedded), embedded_server(embedded):  # threads of one process may nest too
        assert running_pid(embedded) == pid
    assert alive(pid)
    assert second.leave() == 0
    assert not alive(pid)


def test_a_killed_user_leaves_it_to_the_next(embedded: Settings) -> None:
    holder = Holder(embedded.state_dir)
    holder.enter()
    pid = holder.server_pid()
    holder.kill()  # with its whole process group
    assert alive(pid)
    with embedded_server(embedded) as url:
        assert running_pid(embedded) == pid
        assert query(url, "SELECT 1") == 1
    assert not alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_started_by_many_at_once(fresh: Settings, count: int) -> None:
    holders = [Holder(fresh.state_dir) for _ in range(count)]
    for holder in holders:
        holder.enter()
    pids = {holder.server_pid() for holder in holders}
    assert len(pids) == 1
    assert [holder.leave() for holder in holders] == [0] * count
    assert not alive(pids.pop())


@pytest.mark.slow
def test_a_starter_killed_at_any_point(fresh: Settings) -> None:
    """The first start goes through copying, initdb, launch and recovery; a kill in each must not hinder the next start."""
    for delay_s in (0.0, 0.02, 0.1, 0.2, 0.35, 0.5, 0.6, 0.7):
        holder = Holder(fresh.state_dir)
        holder.enter()
        time.sleep(delay_s)
        holder.kill()
    with embedded_server(fresh) as url:
        assert query(url, "SELECT current_database()") == "evals"
    while _working_below(fresh.state_dir):  # what a killed starter began goes on for a while
        time.sleep(0.05)
    with embedded_server(fresh):
        pass
    cluster = fresh.state_dir / "postgres/cluster"
    assert {path.name for path in cluster.iterdir()} == {"data", "server.log", "server.log.1"}


def _working_below(folder: Path) -> list[str]:
    found: list[str] = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue  # gone, or somebody else's
    return [place for place in found if place.startswith(str(folder))]


def _ended(pid: int) -> None:
    while alive(pid):
        time.sleep(0.01)


def test_a_killed_postmaster_is_started_again_under_the_same_url(embedded: Settings) -> None:
    with embedded_server(embedded) as url:
        query(url, "CREATE TABLE t AS SELECT 7 AS n")
        pid = running_pid(embedded)
        os.kill(pid, signal.SIGKILL)
        _ended(pid)
        assert restart_if_down(embedded)
        assert query(url, "SELECT n FROM t") == 7
        assert running_pid(embedded) != pid
        again = running_pid(embedded)
        assert restart_if_down(embedded)
        assert running_pid(embedded) == again


def test_orphans_of_a_killed_postmaster_are_ended(embedded: Settings) -> None:
    """A backend in a long computation does not notice by itself that its postmaster is gone."""
    with embedded_server(embedded) as url:
        backend: list[int] = []

        def compute() -> None:
            with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection, connection.cursor() as cursor:
                backend.append(connection.info.backend_pid)
                with pytest.raises(psycopg2.OperationalError):
                    cursor.execute("SELECT count(*) FROM generate_series(1, 1000000000) a, generate_series(1, 1000) b")

        thread = threading.Thread(target=compute)
        thread.start()
        while not query(url, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"):
            time.sleep(0.01)
        pid = running_pid(embedded)
        os.kill(pid, signal.SIGKILL)
        _ended(pid)
        assert restart_if_down(embedded)
        thread.join()
        assert not alive(backend[0])
        assert query(url, "SELECT 1") == 1


def test_a_postmaster_killed_after_all_users(embedded: Settings) -> None:
    holder = Holder(embedded.state_dir)
    holder.enter()
    pid = holder.server_pid()
    holder.kill()
    os.kill(pid, signal.SIGKILL)
    _ended(pid)
    assert server_status(embedded).running is False
    with embedded_server(embedded) as url:
        assert query(url, "SELECT 1") == 1


def test_who_starts_or_stops_it_for_too_long_is_named(
    embedded: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(looking, "SAY_AFTER_S", 0.1)
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_S", 0.5)
    with (embedded.state_dir / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(LedgerUnavailable, match=f"process {os.getpid()} has been starting or stopping"),
            embedded_server(embedded),
        ):
            pass
    assert f"waiting for process {os.getpid()}" in caplog.text
    with embedded_server(embedded) as url:
        assert query(url, "SELECT 1") == 1


@pytest.mark.parametrize("reused", [False, True])
def test_a_stale_pid_file(embedded: Settings, reused: bool) -> None:
    """The pid is dead, or belongs by now to another program of the server's own user."""
    with embedded_server(embedded):
        pid_file = embedded.state_dir / "postgres/cluster/data/postmaster.pid"
        lines = pid_file.read_text().splitlines()
    owner = pid_file.parent.stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner if os.getuid() == 0 else None) as other:
        if not reused:
            other.kill()
            other.wait()
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        os.chown(pid_file, owner, -1)
        pid_file.chmod(0o600)
        assert server_status(embedded).running is False
        assert server_status(embedded).pid is None
        with embedded_server(embedded) as url:
            assert query(url, "SELECT 1") == 1
        assert (other.poll() is None) == reused
        other.kill()


def test_status_follows_the_server(fresh: Settings) -> None:
    before = server_status(fresh)
    assert (before.running, before.pid, before.url, before.data_dir, before.version) == (False, None, None, None, None)
    assert not list(fresh.state_dir.iterdir())
    with embedded_server(fresh) as url:
        status = server_status(fresh)
        assert (status.running, status.url) == (True, url)
        assert status.data_dir is not None
        assert Path(f"/proc/{status.pid}/cwd").samefile(status.data_dir)
        assert str(status.version) == query(url, "SHOW server_version")
    after = server_status(fresh)
    assert (after.running, after.pid, after.version) == (False, None, "18")


def test_a_server_given_by_its_url_is_left_alone(postgres_server: str, state_dir: Path) -> None:
    given = postgres_server.replace("postgresql+psycopg2://", "postgres://")
    settings = Settings(state_dir=state_dir, worlds_dir=state_dir, postgres_url=given)
    with embedded_server(settings) as url:
        assert url == postgres_server
    assert query(postgres_server, "SELECT 1") == 1
    assert not list(state_dir.iterdir())
    status = server_status(settings)
    assert (status.running, status.pid, status.data_dir) == (True, None, None)
    assert restart_if_down(settings)


def test_a_given_server_that_is_down(state_dir: Path) -> None:
    settings = Settings(state_dir=state_dir, worlds_dir=state_dir, postgres_url=f"postgresql://x@/x?host={state_dir}")
    assert server_status(settings).running is False
    assert restart_if_down(settings) is False


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://u:p%40@h:1/d?sslmode=require", "postgresql+psycopg2://u:p%40@h:1/d?sslmode=require"),
        ("postgresql://h/d", "postgresql+psycopg2://h/d"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg2://h/d"),
    ],
)
def test_normalised(url: str, expected: str) -> None:
    assert normalised(url) == expected


@pytest.mark.parametrize("url", ["sqlite:///secret", "postgresql+asyncpg://u:secret@h/d", "secret", "mysql://secret@h/d"])
def test_other_databases_are_refused_without_repeating_the_url(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        normalised(url)
    assert "secret" not in str(caught.value)
    assert "postgresql://" in str(caught.value.hint)


def test_a_state_directory_that_is_a_file(state_dir: Path) -> None:
    (state_dir / "file").touch()
    with (
        pytest.raises(LedgerUnavailable, match="can't be used") as caught,
        embedded_server(Settings(state_dir=state_dir / "file", worlds_dir=state_dir)),
    ):
        pass
    assert "EVALS_STATE_DIR" in str(caught.value.hint)
