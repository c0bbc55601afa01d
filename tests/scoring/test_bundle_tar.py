"""One bundle in all the forms in which it may lie somewhere."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.scoring.bundle_tar import bundle_members, compress, compressing

NAMES = ["out/result.json", "out/transcript.jsonl", "out/files/" + "n" * 300, "logs/agent.stdout"]


def tar_of(contents: list[bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in zip(NAMES, contents, strict=False):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def members(bundle: Path | BinaryIO) -> list[tuple[str, bytes]]:
    return [(member.name, stream.read()) for member, stream in bundle_members(bundle) if stream is not None]


class Slow(io.RawIOBase):
    """A stream that can't seek."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(size)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=2000) | st.integers(0, 700_000).map(bytes), max_size=4))
def test_in_every_form_it_is_the_same(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("b") / "b"
    plain = tar_of(contents)
    for form in (plain, gzip.compress(plain), pyarrow.compress(plain, "zstd", asbytes=True)):
        path.write_bytes(form)
        with path.open("rb") as stream:
            streamed = members(stream)
        assert members(path) == streamed == members(Slow(form)) == list(zip(NAMES, contents, strict=False))  # pyright: ignore[reportArgumentType]


def test_what_is_compressed_comes_back_from_the_tool(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(plain := tar_of([b"x" * 3_000_000, bytes(range(256)) * 5000]))
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as dest:
            compress(tmp_path / "b.tar", dest)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert pyarrow.input_stream(tmp_path / "one", compression="zstd").read() == plain
    assert (tmp_path / "one").stat().st_size < len(plain) / 100


def test_one_that_was_cut_off_is_broken_and_never_shorter(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with compressing(sink) as packed:
        packed.write(tar_of([bytes(100_000), b"a" * 100_000]))
    whole = sink.getvalue()
    for size in range(0, len(whole) - 4, 7):
        (tmp_path / "b").write_bytes(whole[:size])
        with pytest.raises((tarfile.TarError, OSError, TypeError)):
            assert len(members(tmp_path / "b")) == 2
            raise OSError("all members came before the end")
