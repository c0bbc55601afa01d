from __future__ import annotations

from pathlib import Path

import pytest

from eval_pipeline.sandbox.local import smallfiles


def test_what_is_written_replaces_all_that_was_there(tmp_path: Path) -> None:
    for text in ("ä" * 200_000, "short\n", ""):
        smallfiles.write(tmp_path / "f", text)
        assert smallfiles.read(tmp_path / "f") == text == (tmp_path / "f").read_text()


def test_a_kernel_file_without_a_size_is_read_whole() -> None:
    assert smallfiles.read("/proc/self/cmdline") == Path("/proc/self/cmdline").read_text()


def test_what_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        smallfiles.read(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        smallfiles.write(tmp_path / "d" / "f", "")
