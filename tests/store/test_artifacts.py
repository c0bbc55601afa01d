from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import Artifact, LocalArtifacts, open_store


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(tmp_path / "artifacts")


def _objects(tmp_path: Path) -> list[str]:
    folder = tmp_path / "artifacts"
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_put_and_read(store: LocalArtifacts, tmp_path: Path) -> None:
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, "abc"
    (tmp_path / "abc").write_bytes(b"abc")
    assert not store.exists(digest)
    assert store.put_file(tmp_path / "abc") == Artifact(digest, 3)
    assert store.put_bytes(b"abc") == Artifact(digest, 3)
    assert _objects(tmp_path) == [f"ba/{digest}"]
    assert store.exists(digest)
    with store.open(digest) as stream:
        assert stream.read() == b"abc"
    store.fetch(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"abc"
    assert Path(store.url(digest).removeprefix("file://")).read_bytes() == b"abc"


def test_a_file_is_taken_without_a_copy_where_that_can_be(tmp_path: Path, store: LocalArtifacts) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    taken = store.take_file(tmp_path / "abc")
    (path,) = [tmp_path / "artifacts" / one for one in _objects(tmp_path)]
    assert taken == store.put_bytes(b"abc") == store.take_file(tmp_path / "abc")
    assert path.samefile(tmp_path / "abc") and stat.S_IMODE(path.stat().st_mode) == 0o444
    (tmp_path / "abc").unlink()
    assert path.read_bytes() == b"abc"
    os.utime(path, (1, 1))
    (tmp_path / "again").write_bytes(b"abc")
    assert store.take_file(tmp_path / "again") == taken and time.time() - path.stat().st_mtime < 60
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert store.take_file(tmp_path / "again") == taken and path.read_bytes() == b"abc"
    assert _objects(tmp_path) == [f"{taken.digest[:2]}/{taken.digest}"]


def test_a_file_is_taken_from_another_file_system() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there, tempfile.TemporaryDirectory() as here:
        (Path(there) / "abc").write_bytes(b"abc")
        store = LocalArtifacts(Path(here))
        taken = store.take_file(Path(there) / "abc")
        with store.open(taken.digest) as stream:
            assert stream.read() == b"abc"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_001])
def test_sizes(store: LocalArtifacts, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    artifact = store.put_bytes(data)
    assert artifact == Artifact(hashlib.sha256(data).hexdigest(), size)
    with store.open(artifact.digest) as stream:
        assert b"".join(iter(lambda: stream.read(77_777), b"")) == data


def test_files_are_never_loaded_whole(store: LocalArtifacts, tmp_path: Path) -> None:
    """In a child that may not map more than the interpreter and 40 MiB: a 80 MB file goes in and out."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(80_000_000)
    script = """
import resource, sys
from pathlib import Path
from eval_pipeline.store.artifacts import LocalArtifacts
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
store = LocalArtifacts(Path(sys.argv[1]) / "artifacts")
store.fetch(store.put_file(Path(sys.argv[1]) / "big").digest, Path(sys.argv[1]) / "copy")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert (tmp_path / "copy").stat().st_size == 80_000_000


def test_an_existing_object_is_not_written_again(store: LocalArtifacts, tmp_path: Path) -> None:
    artifact = store.put_bytes(b"abc")
    before = (tmp_path / "artifacts" / _objects(tmp_path)[0]).stat()
    store.put_bytes(b"abc")
    assert (tmp_path / "artifacts" / artifact.digest[:2] / artifact.digest).stat().st_ino == before.st_ino


def test_an_object_of_another_size_is_replaced(store: LocalArtifacts, tmp_path: Path) -> None:
    artifact = store.put_bytes(b"abc")
    path = tmp_path / "artifacts" / artifact.digest[:2] / artifact.digest
    path.chmod(0o644)
    path.write_bytes(b"ab")
    store.put_bytes(b"abc")
    assert path.read_bytes() == b"abc"


@pytest.mark.parametrize("content", [b"abd", b"ab", b"abcd", b""])
def test_damage_is_found(store: LocalArtifacts, tmp_path: Path, content: bytes) -> None:
    artifact = store.put_bytes(b"abc")
    path = tmp_path / "artifacts" / artifact.digest[:2] / artifact.digest
    path.chmod(0o644)
    path.write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match=artifact.digest):
        store.fetch(artifact.digest, tmp_path / "out/dest")
    assert not list((tmp_path / "out").iterdir())
    with store.open(artifact.digest) as stream, pytest.raises(StoreError, match=artifact.digest):
        stream.read()


def test_a_failed_fetch_leaves_the_old_file(store: LocalArtifacts, tmp_path: Path) -> None:
    (tmp_path / "dest").write_text("old")
    with pytest.raises(StoreError, match="is not in"):
        store.fetch("0" * 64, tmp_path / "dest")
    assert (tmp_path / "dest").read_text() == "old"


@pytest.mark.parametrize("digest", ["", "abc", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_digest(store: LocalArtifacts, tmp_path: Path, digest: str) -> None:
    for call in (store.open, store.exists, store.url):
        with pytest.raises(StoreError, match="64 hex digits"):
            call(digest)


def test_a_missing_source(store: LocalArtifacts, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        store.put_file(tmp_path / "absent")
    with pytest.raises(StoreError, match="Is a directory"):
        store.put_file(tmp_path)


def test_many_puts_of_the_same(store: LocalArtifacts, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(store.put_bytes, [data] * 40))) == 1
    assert len(_objects(tmp_path)) == 1


def test_a_file_that_grows_while_it_is_stored(store: LocalArtifacts, tmp_path: Path) -> None:
    """A writer appends without pause; whatever is stored in the end is what its name says."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 4_000_000)
    done = threading.Event()

    def append() -> None:
        with path.open("ab", buffering=0) as file:
            while not done.is_set():
                file.write(b"y")

    writer = threading.Thread(target=append)
    writer.start()
    try:
        for _ in range(5):
            try:
                store.put_file(path)
            except StoreError as error:
                assert "changed while" in (error.hint or "")
    finally:
        done.set()
        writer.join()
    for name in _objects(tmp_path):
        assert hashlib.sha256((tmp_path / "artifacts" / name).read_bytes()).hexdigest() == Path(name).name


def test_killed_at_any_point(tmp_path: Path) -> None:
    """A child stores different large objects until it is killed; every visible one is whole."""
    script = """
import os, sys
from pathlib import Path
from eval_pipeline.store.artifacts import LocalArtifacts
store = LocalArtifacts(Path(sys.argv[1]))
store.put_bytes(os.urandom(3_000_000))
print("ready", flush=True)
while True:
    store.put_bytes(os.urandom(3_000_000))
"""
    for delay_s in (0.005, 0.02, 0.05, 0.09):
        child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "artifacts")], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(delay_s)
            child.send_signal(signal.SIGKILL)
    names = [name for name in _objects(tmp_path) if not name.startswith("tmp/")]
    assert len(names) >= 4
    for name in names:
        assert hashlib.sha256((tmp_path / "artifacts" / name).read_bytes()).hexdigest() == Path(name).name


def test_abandoned_files_are_swept(store: LocalArtifacts, tmp_path: Path) -> None:
    store.put_bytes(b"1")
    old, young = tmp_path / "artifacts/tmp/.unfinished-old", tmp_path / "artifacts/tmp/.unfinished-young"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    store.put_bytes(b"2")
    assert not old.exists()
    assert young.exists()


def test_stored_files_are_read_only(store: LocalArtifacts, tmp_path: Path) -> None:
    store.put_bytes(b"1")
    assert stat.S_IMODE((tmp_path / "artifacts" / _objects(tmp_path)[0]).stat().st_mode) == 0o444


@pytest.fixture
def tiny_disk(state_dir: Path) -> Generator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = state_dir / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "evals-test", disk], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"this root can't mount: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk(tiny_disk: Path, tmp_path: Path) -> None:
    small, large = LocalArtifacts(tiny_disk / "artifacts"), LocalArtifacts(tmp_path / "artifacts")
    with pytest.raises(StoreError, match="the disk is full") as caught:
        small.put_bytes(os.urandom(2_000_000))
    assert caught.value.hint
    artifact = large.put_bytes(os.urandom(2_000_000))
    with pytest.raises(StoreError, match="the disk is full"):
        large.fetch(artifact.digest, tiny_disk / "dest")
    assert not [p for p in tiny_disk.rglob("*") if p.is_file()]


def test_open_store(tmp_path: Path) -> None:
    local = open_store(Settings(state_dir=tmp_path, worlds_dir=tmp_path))
    assert local.put_bytes(b"abc").size_bytes == 3
    assert (tmp_path / "artifacts/ba").is_dir()
    for url in ("s3://", "s3:///x", "http://bucket", "bucket", ""):
        with pytest.raises(SpecError, match="EVALS_ARTIFACTS_URL"):
            open_store(Settings(state_dir=tmp_path, worlds_dir=tmp_path, artifacts_url=url))
