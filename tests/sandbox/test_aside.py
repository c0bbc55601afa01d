"""Where sandboxes are started: with few mounts, and never with other content than here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from eval_pipeline.sandbox.local import aside

pytestmark = pytest.mark.skipif("os.getuid() != 0", reason="only root mounts")
OTHERS = Path("/dev/shm")
ROOTS = (Path("/usr"), Path("/proc"))


def mount(folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "here", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    mount(folder := tmp_path / "disk")
    (folder / "a").write_text("on the disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def table() -> list[str]:
    return [line.split()[4] for line in Path("/proc/thread-self/mountinfo").read_text().splitlines()]


def test_few_mounts_are_there_and_the_disk(disk: Path) -> None:
    before = table()
    there = aside.run(table, disk, OTHERS, ROOTS, ROOTS)
    assert there.count(str(disk)) == 1
    assert "/sys" not in there
    assert len(there) < len(before)
    assert aside.run(lambda: (disk / "a").read_text(), disk, OTHERS, ROOTS, []) == "on the disk"
    assert table() == before


def test_what_was_mounted_later_is_there_as_well(disk: Path, tmp_path: Path) -> None:
    aside.run(table, disk, OTHERS, ROOTS, [tmp_path])
    mount(later := tmp_path / "later")
    try:
        (later / "world").write_text("new")
        assert aside.run(lambda: (later / "world").read_text(), disk, OTHERS, ROOTS, [later]) == "new"
    finally:
        subprocess.run(["umount", str(later)], check=True)


def test_what_is_done_there_never_reaches_the_host(disk: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    aside.run(lambda: mount(mounted), disk, OTHERS, ROOTS, [])
    assert mounted.is_dir()
    assert str(mounted) not in table()


def test_its_failure_is_the_callers(disk: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such"):
        aside.run(lambda: Path("/no-such").read_text(), disk, OTHERS, ROOTS, [])


def test_what_is_no_mount_is_worked_on_here(tmp_path: Path) -> None:
    assert aside.run(table, tmp_path / "nothing", OTHERS, ROOTS, []) == table()
    assert aside.run(table, tmp_path, OTHERS, ROOTS, [tmp_path / "nothing"]) == table()


def test_who_may_make_no_namespace_works_here(disk: Path) -> None:
    program = f"""if True:
        from pathlib import Path
        from eval_pipeline.sandbox.local import aside
        print(aside.run((Path({str(disk)!r}) / "a").read_text, Path({str(disk)!r}), Path("/dev/shm"), (Path("/usr"),), []))
    """
    weak = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", program]
    assert subprocess.run(weak, check=True, capture_output=True, text=True).stdout == "on the disk\n"
