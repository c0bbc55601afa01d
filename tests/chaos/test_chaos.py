"""Whatever is killed, paused or taken away, at any moment: nothing is lost, nothing runs twice, and nothing stays behind."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest
from chaos.chaos_faults import FAULTS
from chaos.chaos_play import FULL_SET, kinds_of, play
from chaos.chaos_stage import Stage, stage
from support.places import short_dir


@pytest.fixture(scope="module")
def local() -> Generator[Stage]:
    with short_dir() as root, stage("local", root, None) as made:
        yield made


@pytest.fixture(scope="module")
def modal(request: pytest.FixtureRequest) -> Generator[Stage]:
    server = request.getfixturevalue("modal_server")
    with short_dir() as root, stage("modal", root, server) as made:
        yield made


def rounds(made: Stage, seeds: Iterable[int], logs: Path, record: pytest.FixtureRequest) -> None:
    total = play(made, seeds, logs)
    record.node.user_properties.append(
        ("chaos", [total.rounds, total.cells, total.lost, total.doubled, total.rerun_alive, total.leaked])
    )
    assert total.why == []


def test_a_full_set_of_rounds_holds_every_fault() -> None:
    for first in (0, 5, 50):
        kinds = [kind for seed in range(first, first + FULL_SET) for kind in kinds_of(seed)]
        assert sorted(kinds) == sorted(FAULTS)


@pytest.mark.slow
def test_rounds_on_this_machine(local: Stage, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds(local, [0, 2, 4] if os.getuid() == 0 else range(5), tmp_path, request)


@pytest.mark.slow
def test_rounds_on_modal(modal: Stage, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds(modal, [1, 3], tmp_path, request)


@pytest.mark.long
def test_many_rounds_on_this_machine(local: Stage, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds(local, range(5, 35), tmp_path, request)


@pytest.mark.long
def test_many_rounds_on_modal(modal: Stage, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds(modal, range(35, 55), tmp_path, request)
