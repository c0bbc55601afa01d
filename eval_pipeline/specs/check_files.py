"""The files of checks that are programs of one's own: read with their case, and from then on a part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.scoring import check_python


def with_files(check: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The check with the content of every file it names, however deep. folder: the case's. Raises ValueError."""
    return cast(dict[str, Any], _with_files(check, folder))


def _with_files(part: Any, folder: Path) -> Any:
    if isinstance(part, list):
        return [_with_files(item, folder) for item in cast(list[Any], part)]
    if isinstance(part, Mapping):
        named = cast(Mapping[str, Any], part)
        return {key: _read(value, folder) if key == "python" else _with_files(value, folder) for key, value in named.items()}
    return part


def _read(argument: Any, folder: Path) -> dict[str, Any]:
    file, options = check_python.located(argument)
    path = folder / file
    if path.suffix != ".py" or not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"check `python` names {file!r}, and its file is a .py in the case's folder or below it")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"check `python` names {file!r}, which can't be read: {error.strerror}") from None
    if len(content) > check_python.SOURCE_MAX_BYTES:
        raise ValueError(f"{file} has {len(content):,} bytes, and a check at most {check_python.SOURCE_MAX_BYTES:,}")
    try:
        return check_python.loaded(file, content.decode("utf-8-sig"), options)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: byte {error.start} can't be decoded") from None


def programs(rubric: Rubric) -> Iterator[tuple[int, str]]:
    """(index of the criterion, file) of every check that is a program of one's own."""
    for index, criterion in enumerate(rubric.criteria):
        yield from ((index, file) for file in _files(criterion.check))


def _files(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for item in cast(list[Any], part):
            yield from _files(item)
    if isinstance(part, Mapping):
        for key, value in cast(Mapping[str, Any], part).items():
            if key == "python":
                yield value["file"]
            else:
                yield from _files(value)
