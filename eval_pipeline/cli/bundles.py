"""Looking into a stored output bundle, of any size: nothing is held in memory as a whole."""

from __future__ import annotations

import codecs
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from eval_pipeline.cli.output import harmless
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell

_CHUNK = 2**20


def members(settings: Settings, cell: ScoredCell) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of its files, of the counted attempt or of the last that left a bundle; each is read before the next."""
    from eval_pipeline.scoring.bundle_tar import bundle_members
    from eval_pipeline.store.artifacts import open_store

    bundle = next(
        (a.bundle for a in [cell.counted, *reversed(cell.view.attempts)] if a is not None and a.bundle is not None), None
    )
    if bundle is None:
        return
    with open_store(settings).open(bundle) as stored:
        for member, stream in bundle_members(stored):
            if stream is not None:
                yield member.name, member.size, stream


def last_bytes(stream: IO[bytes], most: int) -> bytes:
    kept = b""
    while chunk := stream.read(_CHUNK):
        kept = (kept + chunk)[-most:]
    return kept


def print_text(stream: IO[bytes]) -> None:
    """What is no text appears as escapes or marks; it ends with a newline."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = ""
    while chunk := stream.read(_CHUNK):
        text = harmless(decoder.decode(chunk))
        click.echo(text, nl=False)
        last = text or last
    text = decoder.decode(b"", final=True) or ("" if last else "(empty)")
    click.echo(text, nl=not (text or last).endswith("\n"))


def print_raw(stream: IO[bytes]) -> None:
    sys.stdout.flush()
    shutil.copyfileobj(stream, sys.stdout.buffer, _CHUNK)
    sys.stdout.buffer.flush()


def write_below(folder: Path, name: str, content: IO[bytes]) -> None:
    from eval_pipeline.errors import StoreError

    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"the file name {name!r} leads out of {folder}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        shutil.copyfileobj(content, sink, _CHUNK)
