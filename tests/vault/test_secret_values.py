"""Kept values: private files, and versions that say nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest

from eval_pipeline.errors import InfrastructureError
from eval_pipeline.vault.values import Values, own_private

pytestmark = pytest.mark.usefixtures("swept")


def test_a_value_comes_back_under_its_version(state_dir: Path) -> None:
    values = Values(state_dir)
    odd = "two\nlines \u00fc \udcff"
    version = values.put("A", odd)
    assert values.get("A", version) == odd
    assert values.put("A", odd) == version
    assert len({version, values.put("A", "other"), values.put("B", odd)}) == 3
    assert values.get("B", version) is None


def test_everything_is_ours_alone(state_dir: Path) -> None:
    old = os.umask(0)
    try:
        values = Values(state_dir)
        values.put("A", "x")
        with values.exclusive():
            pass
    finally:
        os.umask(old)
    made = [values.folder, *values.folder.iterdir(), state_dir / "secrets", *(state_dir / "secrets").rglob("*")]
    assert len(made) >= 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}


def test_the_same_value_has_another_version_in_another_installation(state_dir: Path) -> None:
    first, second = Values(state_dir / "a"), Values(state_dir / "b")
    try:
        assert first.put("A", "x") != second.put("A", "x")
        assert first.put("A", "x") == Values(state_dir / "a").put("A", "x")
    finally:
        for values in (first, second):
            values.keep_only(set())
            values.folder.rmdir()


def test_what_is_not_whole_is_not_there(state_dir: Path) -> None:
    values = Values(state_dir)
    version = values.put("A", "long enough")
    (values.folder / f"A.{version}").write_text("long")
    assert values.get("A", version) is None
    values.put("A", "long enough")
    assert values.get("A", version) == "long enough"


def test_only_the_wanted_are_kept(state_dir: Path) -> None:
    values = Values(state_dir)
    one, two = values.put("A", "1"), values.put("A", "2")
    (values.folder / ".A.half").write_text("2")
    assert values.keep_only({("A", two), ("B", one)}) == 2
    assert (values.get("A", one), values.get("A", two)) == (None, "2")


def test_a_prepared_place_is_refused(tmp_path: Path) -> None:
    """Who was there first could read what is put there."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(own_private(tmp_path / "ours"))
    (tmp_path / "file").touch(mode=0o700)
    for name in ("open", "link", "file"):
        with pytest.raises(InfrastructureError, match="not a directory of our own"):
            own_private(tmp_path / name)


def test_a_cut_key_is_refused(state_dir: Path) -> None:
    values = Values(state_dir)
    values.put("A", "x")
    (state_dir / "secrets/key").write_bytes(b"short")
    with pytest.raises(InfrastructureError, match="holds 5 bytes"):
        values.put("A", "x")


def test_who_only_looks_leaves_nothing_behind(state_dir: Path) -> None:
    values = Values(state_dir)
    assert values.names() == frozenset() and values.held() == {}
    folder = f"evals-secrets-{hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]}"
    assert not (Path("/dev/shm") / folder).exists() and list(state_dir.iterdir()) == []
    with values.exclusive():
        version = values.put("A", "value-of-a")
    assert (values.names(), values.held()) == ({f"A.{version}"}, {("A", version): "value-of-a"})
    shutil.rmtree(values.folder)
