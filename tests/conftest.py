"""Fixtures for everybody: a state directory, a server of our own per worker process, a database per test, settings."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.clusters import execute, with_cluster
from support.modal_loopback import LoopbackModal, loopback_modal
from support.places import short_dir
from support.reused_ledger import ReusedLedger, url_of
from xdist.scheduler import LoadScopeScheduling

from eval_pipeline.gateway.client import stop
from eval_pipeline.settings import Settings
from eval_pipeline.store.database import Database
from eval_pipeline.store.postgres import embedded_server

# Whose files share what takes a worker longest to make: the examples' state directory, the house's trees of the whole source
TOGETHER = ("tests/examples/", "tests/test_house")
LONGEST = {"examples", "chaos", "ui"}
NONE_OF = re.compile(r"not \w+( and not \w+)*")
WHOLE_FILE = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is, as a whole, what nobody asked for (`-m "not slow"`) is not imported: that costs more than the fast tests do."""
    asked: str = config.option.markexpr
    if collection_path.suffix != ".py" or not NONE_OF.fullmatch(asked):
        return None
    marks = set(re.findall(r"\bmark\.(\w+)", "".join(WHOLE_FILE.findall(collection_path.read_text()))))
    return True if marks & set(re.findall(r"not (\w+)", asked)) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, whole files at a time: so no worker is left with it when the others have ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.parent.name not in LONGEST, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return next(filter(nodeid.startswith, TOGETHER), None) or super()._split_scope(nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The chaos rounds of all workers in one line, and what was thrown at readers in another."""
    reports = [one for reports in terminalreporter.stats.values() for one in reports if getattr(one, "when", None) == "call"]
    tolls = [toll for one in reports for name, toll in getattr(one, "user_properties", ()) if name == "chaos"]
    if tolls:
        words = ("rounds", "cells", "lost", "doubled", "rerun_alive", "leaked")
        sums = [f"{word}={sum(numbers)}" for word, numbers in zip(words, zip(*tolls, strict=True), strict=True)]
        terminalreporter.write_line(f"chaos {' '.join(sums)}")
    thrown = [counts for one in reports for name, counts in getattr(one, "user_properties", ()) if name == "fuzz"]
    if thrown:
        readers, inputs = (sum(numbers) for numbers in zip(*thrown, strict=True))
        terminalreporter.write_line(f"fuzz readers={readers} inputs={inputs}")


@pytest.fixture
def state_dir() -> Generator[Path]:
    with short_dir() as folder:
        yield folder


@pytest.fixture(scope="module")
def shared_state() -> Generator[Path]:
    """One state directory a module: Postgres' data and the base layers are made once, and no module sees what another left."""
    with short_dir() as folder:
        state = with_cluster(folder / "state")
        with embedded_server(Settings(state_dir=state, worlds_dir=folder)):  # keeps the server for the module
            yield state
        stop(state)


@pytest.fixture(scope="session")
def modal_server() -> Generator[LoopbackModal]:
    """A loopback Modal that only this worker process uses; the Modal client in this process and its children finds it."""
    if os.getuid() != 0:
        pytest.skip("the loopback Modal serves as root: a sandbox there has a root and a user")
    before = dict(os.environ)
    with short_dir() as folder, loopback_modal(folder) as server:
        os.environ.update(server.env)
        yield server
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def postgres_server() -> Generator[str]:
    """URL of the database `evals` of a server that only this worker process uses."""
    with short_dir() as folder, embedded_server(Settings(state_dir=with_cluster(folder), worlds_dir=folder)) as url:
        yield url


@pytest.fixture(scope="session")
def ledger_template(postgres_server: str) -> str:
    """The name of a database with the ledger's schema and nothing in it. Copying it takes a tenth of what the migrations take."""
    name = "ledger_template"
    execute(postgres_server, f"CREATE DATABASE {name}")
    database = Database(url_of(postgres_server, name))
    database.migrate()
    database.close()
    return name


@pytest.fixture
def empty_database_url(postgres_server: str) -> Generator[str]:
    """A database with nothing in it, dropped afterwards even when the test left connections open."""
    name = f"t_{secrets.token_hex(6)}"
    execute(postgres_server, f"CREATE DATABASE {name}")
    yield url_of(postgres_server, name)
    execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def reused_ledger(postgres_server: str, ledger_template: str) -> ReusedLedger:
    return ReusedLedger(postgres_server, ledger_template)


@pytest.fixture
def database_url(reused_ledger: ReusedLedger) -> Generator[str]:
    """A ledger with nothing in it, an installation like no other."""
    yield reused_ledger.take()
    reused_ledger.give_back()


@pytest.fixture
def settings(state_dir: Path, database_url: str) -> Settings:
    worlds = state_dir / "worlds_src"
    worlds.mkdir()
    return Settings(state_dir=state_dir, worlds_dir=worlds, postgres_url=database_url)
