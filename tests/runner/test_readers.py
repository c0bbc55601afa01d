"""Readers that die: by kill -9, and by their own memory limit; the next bundle and the one beside it are read all the same."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import signal
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.errors import OutputUnreadable
from eval_pipeline.runner.judging import BundleTask
from eval_pipeline.runner.readers import Readers

RUBRIC = Rubric(criteria=(Criterion(id="yes", text="Says yes", points=1, check={"contains": "yes"}),))
RESULT = b'{"status": "ok", "answer": "yes"}'

pytestmark = pytest.mark.slow


def bundle(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def task(path: Path) -> BundleTask:
    return BundleTask(path=path, bundle="0" * 64, rubric=RUBRIC, world_digest="0" * 64, world_dir=path.parent)


async def kill_readers(n: int, spared: set[int]) -> None:
    """kill -9 `n` readers that are not among `spared`, each as it comes."""
    killed: set[int] = set()
    while len(killed) < n:
        for child in multiprocessing.active_children():
            if child.pid is not None and child.pid not in spared | killed:
                os.kill(child.pid, signal.SIGKILL)
                killed.add(child.pid)
        await asyncio.sleep(0.02)


def test_a_reader_that_is_killed_again_and_again_fails_its_bundle_alone(tmp_path: Path) -> None:
    good = bundle(tmp_path / "good.tar.gz", {"out/result.json": RESULT})
    stuck = tmp_path / "stuck.tar.gz"
    os.mkfifo(stuck)  # whoever opens it waits for ever

    async def run() -> None:
        readers = Readers()
        try:
            assert (await readers.report(task(good))).result.answer == "yes"
            theirs = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
            beside = await readers.report(task(good))
            first = asyncio.create_task(readers.report(task(stuck)))  # takes the idle one
            await asyncio.sleep(0.2)
            os.kill(next(iter(theirs)), signal.SIGKILL)
            await kill_readers(1, theirs)
            with pytest.raises(OutputUnreadable, match="SIGKILL"):
                await first
            assert beside.verdicts == (await readers.report(task(good))).verdicts
        finally:
            readers.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert multiprocessing.active_children() == []


def test_one_killed_reader_costs_nothing(tmp_path: Path) -> None:
    slow = tmp_path / "slow.tar.gz"
    os.mkfifo(slow)
    whole = bundle(tmp_path / "whole.tar.gz", {"out/result.json": RESULT}).read_bytes()

    async def run() -> None:
        readers = Readers()
        try:
            asked = asyncio.create_task(readers.report(task(slow)))
            await kill_readers(1, set())
            await asyncio.to_thread(slow.write_bytes, whole)
            assert (await asked).result.answer == "yes"
        finally:
            readers.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_needs_too_much_memory_is_said_and_the_next_is_read(tmp_path: Path) -> None:
    large = bundle(tmp_path / "large.tar.gz", {f"out/files/{n}": bytes(42 << 20) for n in range(6)})
    deep = bundle(tmp_path / "deep.tar.gz", {"out/result.json": b"[" + b"{}," * 5_500_000 + b"{}]"})
    good = bundle(tmp_path / "good.tar.gz", {"out/result.json": RESULT})

    async def run() -> None:
        readers = Readers(memory_mib=192)
        try:
            with pytest.raises(OutputUnreadable, match="192 MiB of memory"):
                await readers.report(task(large))
            assert "too much memory" in ((await readers.report(task(deep))).result.error or "")
            assert (await readers.report(task(good))).result.answer == "yes"
        finally:
            readers.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_who_makes_its_reader_wait_for_ever_holds_nobody_up(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck.tar.gz"
    os.mkfifo(stuck)
    good = bundle(tmp_path / "good.tar.gz", {"out/result.json": RESULT})

    async def run() -> None:
        readers = Readers(read_s=0.5)
        with pytest.raises(OutputUnreadable, match=r"takes its reader more than 0\.5 s"):
            await readers.report(task(stuck))
        readers.close()
        readers = Readers()
        try:
            assert (await readers.report(task(good))).result.answer == "yes"
        finally:
            readers.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert multiprocessing.active_children() == []


def test_a_cancelled_question_ends_its_reader(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck.tar.gz"
    os.mkfifo(stuck)

    async def run() -> None:
        readers = Readers()
        asked = asyncio.create_task(readers.report(task(stuck)))
        while not multiprocessing.active_children():
            await asyncio.sleep(0.02)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        readers.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    for child in multiprocessing.active_children():
        child.join(10)
    assert multiprocessing.active_children() == []
