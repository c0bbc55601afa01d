"""Packing as a function: limits, links and changing files, checked by reading the archive with tar itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
from support.places import short_dir

from eval_pipeline.sandbox.local.bundle import pack


def folders(root: Path) -> tuple[Path, Path]:
    for name in ("out", "logs"):
        (root / name).mkdir()
    return root / "out", root / "logs"


def test_the_archive_is_one_that_tar_reads(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    (out / "sub").mkdir()
    (out / "sub" / "a").write_bytes(b"\0\xff" * 1000)
    (logs / "agent.stdout").write_text("said\n")
    packed = pack(out, logs, tmp_path / "new" / "b.tar")
    listing = subprocess.run(["tar", "-tf", tmp_path / "new" / "b.tar"], capture_output=True, text=True, check=True)
    assert listing.stdout.split() == ["out/sub/", "out/sub/a", "logs/agent.stdout"]
    assert (packed.n_files, packed.size_bytes, packed.skipped) == (2, 2005, {})


def test_the_cap_skips_what_does_not_fit_and_goes_on(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    for name, size in (("a", 60), ("b", 50), ("c", 40), ("d", 1)):
        (out / name).write_bytes(b"x" * size)
    with (out / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    packed = pack(out, logs, tmp_path / "b.tar", max_bytes=100)
    assert (packed.n_files, packed.size_bytes) == (2, 100)
    assert packed.skipped.keys() == {"b", "d", "sparse"}
    assert packed.skipped["sparse"] == "too large: 4398046511104 bytes, the bundle holds 100"


def test_links_sockets_and_fifos_are_named_not_opened(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    (tmp_path / "secret").write_text("the host's")
    (out / "link").symlink_to(tmp_path / "secret")
    (logs / "agent.stdout").symlink_to(tmp_path / "secret")
    os.mkfifo(out / "fifo")
    packed = pack(out, logs, tmp_path / "b.tar")
    assert packed.skipped == {"link": "a symbolic link", "fifo": "a FIFO", "../logs/agent.stdout": "a symbolic link"}
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == ["skipped.json"]
        told = tar.extractfile("skipped.json")
        assert told is not None
        assert json.loads(told.read()) == packed.skipped


def test_below_the_state_a_link_into_the_world_is_kept_as_a_link(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    (out / "state" / "documents").mkdir(parents=True)
    kept = {"plain": "/world/documents/a.txt", "long": "/world/" + "d" * 200 + "/x", "odd": "/world/a\nb\udcff"}
    for name, target in kept.items():
        (out / "state" / "documents" / name).symlink_to(target)
    bad = [
        "/world",
        "/world/",
        "/world/../etc/passwd",
        "/world//a",
        "/world/./a",
        "/world/a/",
        "/worlds/a",
        "world/a",
        "../../world/a",
    ]
    for number, target in enumerate(bad):
        os.symlink(target, out / "state" / f"bad{number}")  # noqa: PTH211 - a Path drops the last slash
    (out / "files").mkdir()
    (out / "files" / "elsewhere").symlink_to("/world/documents/a.txt")
    (out / "statement").symlink_to("/world/documents/a.txt")
    packed = pack(out, logs, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar", errors="surrogateescape") as tar:
        links = {member.name: member.linkname for member in tar if member.issym()}
    assert links == {f"out/state/documents/{name}": target for name, target in kept.items()}
    assert set(packed.skipped) == {f"state/bad{number}" for number in range(len(bad))} | {"files/elsewhere", "statement"}
    assert packed.n_files == 0


def test_a_state_that_is_itself_a_link_is_skipped(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    (out / "state").symlink_to("/world/documents")
    assert pack(out, logs, tmp_path / "b.tar").skipped == {"state": "a symbolic link"}


def test_a_large_state_costs_nothing_that_the_agent_wrote(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    for name, size in (("state/database/rows.jsonl", 60), ("transcript.jsonl", 40), ("files/state", 10)):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"x" * size)
    assert pack(out, logs, tmp_path / "b.tar", max_bytes=100).skipped.keys() == {"state/database/rows.jsonl"}


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    made: list[bytes] = []
    for name, stamp in (("one", 1), ("two", 2_000_000_000)):
        root = tmp_path / name
        root.mkdir()
        out, logs = folders(root)
        for file in ("b", "a") if stamp == 1 else ("a", "b"):
            (out / file).write_text(file)
            os.utime(out / file, (stamp, stamp))
        pack(out, logs, root / "b.tar")
        made.append((root / "b.tar").read_bytes())
    assert made[0] == made[1]


def test_files_that_change_meanwhile_leave_a_readable_archive(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    for number in range(20):
        (out / f"f{number}").write_bytes(b"x" * 200_000)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for number in range(20):
                os.truncate(out / f"f{number}", 10)
                os.truncate(out / f"f{number}", 300_000)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(5):
            pack(out, logs, tmp_path / "b.tar")
            subprocess.run(["tar", "-tf", tmp_path / "b.tar"], capture_output=True, check=True)
    finally:
        stop.set()
        thread.join()


def test_nothing_is_left_when_packing_fails(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    logs.rmdir()
    try:
        pack(out, logs, tmp_path / "b.tar")
    except FileNotFoundError:
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    else:
        raise AssertionError("packing a missing directory went well")


@pytest.mark.slow
def test_no_number_of_entries_fills_our_memory(tmp_path: Path) -> None:
    out, logs = folders(tmp_path)
    (out / "many").mkdir()
    for number in range(2500):
        (out / "many" / f"link{number:04}").symlink_to("x")
    (out / "zz").touch()
    (logs / "agent.stdout").write_text("said\n")
    packed = pack(out, logs, tmp_path / "b.tar", max_entries=2000)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert tar.getnames() == ["out/many", "out/zz", "logs/agent.stdout", "skipped.json"]
    assert len(packed.skipped) == 1001
    assert packed.skipped["many/"] == "holds more entries than the bundle has left"
    assert packed.skipped["..."] == "more was left out than is named here"


def test_what_an_agent_locks_is_skipped_and_the_rest_kept() -> None:
    """As a normal user: root is not stopped by modes, so root tries it in a child."""
    code = """
import os, sys
from pathlib import Path
root = Path(sys.argv[1])
from eval_pipeline.sandbox.local.bundle import pack
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
out, logs = root / "out", root / "logs"
for folder in (out / "seen", out / "locked", out / "blind", logs):
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
(out / "secret").write_text("x")
(out / "secret").chmod(0)
(out / "locked").chmod(0)
(out / "blind").chmod(0o400)
out.chmod(0)
print(sorted(pack(out, logs, root / "bundle").skipped))
"""
    with short_dir() as folder:
        folder.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.strip() == "['blind/file', 'locked', 'secret']", done.stderr
