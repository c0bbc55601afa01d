"""An engine's process lives as long as its lock is held, whatever its lease says."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from support.ledgers import HERE, THERE, Books, keys

from eval_pipeline.host import HostIdentity, host_identity
from eval_pipeline.settings import Settings
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.liveness import alive, end_dead_engines, engines_dir

HOLD = """
import sys, time
from pathlib import Path
from eval_pipeline.store.liveness import alive
with alive(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


@pytest.fixture
def here(settings: Settings) -> HostIdentity:
    return host_identity(settings.state_dir)


def living(leases: Leases) -> set[str]:
    return {engine.id for engine in leases.living()}


def test_an_engine_lives_until_its_process_is_killed(books: Books, settings: Settings, here: HostIdentity) -> None:
    engine = books.engine(here)
    command = [sys.executable, "-c", HOLD, str(engines_dir(settings)), engine]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        end_dead_engines(books.leases, settings)
        assert living(books.leases) == {engine}
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = books.experiment()
    end_dead_engines(books.leases, settings)
    assert living(books.leases) == set()
    assert books.claim(run).key == keys(run)[0]


def test_only_this_places_engines_are_judged(books: Books, settings: Settings, here: HostIdentity) -> None:
    before_reboot = HostIdentity("earlier boot", here.place, here.hostname)
    gone, foreign, away = books.engine(before_reboot), books.engine(THERE), books.engine(HERE)
    end_dead_engines(books.leases, settings)
    assert living(books.leases) == {foreign, away}
    assert gone not in living(books.leases)


def test_the_lock_is_free_and_its_file_gone_after_a_clean_end(settings: Settings, books: Books, here: HostIdentity) -> None:
    engine, folder = books.engine(here), engines_dir(settings)
    with alive(folder, engine):
        end_dead_engines(books.leases, settings)
        assert living(books.leases) == {engine}
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyError), alive(folder, engine):
        raise KeyError
    assert list(folder.iterdir()) == []
    end_dead_engines(books.leases, settings)
    assert living(books.leases) == set()


def test_a_lock_file_that_nobody_holds_is_a_dead_engines(settings: Settings, books: Books, here: HostIdentity) -> None:
    engine = books.engine(here)
    Path(engines_dir(settings)).mkdir(parents=True)
    (engines_dir(settings) / f"{engine}.lock").touch()
    end_dead_engines(books.leases, settings)
    assert living(books.leases) == set()
