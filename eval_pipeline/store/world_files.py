"""The files and directories of a world's parts, as they are on disk: listed, opened, and refused when no snapshot can hold them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import NotFound, SpecError, StoreError

PERMISSIONS_NAME = "permissions.yaml"

_PRIVATE = ("cases", "world.yaml")  # what an agent must never see
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True)
class WorldFile:
    """A file or directory as it was when it was listed. name: its place in the snapshot."""

    name: str
    path: Path
    info: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.info.st_mode)

    @property
    def executable(self) -> bool:
        return self.is_file and bool(self.info.st_mode & stat.S_IXUSR)

    @property
    def identity(self) -> tuple[str | int, ...]:
        """Differs once the file is written to, replaced, renamed or given other rights."""
        info = self.info
        return (self.name, info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def list_world(world: Path, spec: WorldSpec) -> list[WorldFile]:
    """Sorted by the bytes of the name, so a directory comes before what is in it. Raises SpecError for what can't be packed."""
    found = [item for part, path in spec.parts().items() for item in _part(world, part, path)]
    return sorted(found, key=lambda item: item.name.encode())


@contextmanager
def opened(file: WorldFile) -> Generator[BinaryIO]:
    """Raises SpecError when it is not, before and after, the very file that was listed."""
    with _readable(file.path):
        try:
            handle = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise changed(file.path) from None
            raise
    try:
        _check_unchanged(file, handle)
        with os.fdopen(handle, "rb", closefd=False) as source:
            yield source
        _check_unchanged(file, handle)
    finally:
        os.close(handle)


def _check_unchanged(file: WorldFile, handle: int) -> None:
    if WorldFile(file.name, file.path, os.fstat(handle)).identity != file.identity:
        raise changed(file.path)


def changed(path: Path) -> SpecError:
    return SpecError("changed while it was being packed", where=str(path), hint="wait until nobody writes there, then try again")


def _part(world: Path, part: str, path: str) -> Iterator[WorldFile]:
    steps = PurePosixPath(path).parts
    if not steps or path.startswith("/") or ".." in steps or steps[0].casefold() in _PRIVATE:
        raise SpecError(
            f"`{part}: {path}` can't be a part of the world",
            where=str(world / "world.yaml"),
            hint=f"name something below the world's folder other than {' and '.join(_PRIVATE)}",
        )
    *above, place = (world.joinpath(*steps[: depth + 1]) for depth in range(len(steps)))
    for folder in above:
        _inspect(world, folder)
    yield from _tree(world, part, place, _inspect(world, place))


def _tree(world: Path, part: str, place: Path, info: os.stat_result) -> Iterator[WorldFile]:
    if part == "permissions":
        if not stat.S_ISREG(info.st_mode):
            raise SpecError("permissions must be a file", where=str(place), hint="correct `permissions:` in world.yaml")
        yield WorldFile(PERMISSIONS_NAME, place, info)
        return
    if not stat.S_ISDIR(info.st_mode):
        raise SpecError(f"{part} must be a directory", where=str(place), hint=f"correct `{part}:` in world.yaml")
    yield WorldFile(part, place, info)
    yield from _below(world, part, place)


def _below(world: Path, name: str, folder: Path) -> Iterator[WorldFile]:
    with _readable(folder):
        children = list(folder.iterdir())
    for path in children:
        info = _inspect(world, path)
        child = f"{name}/{path.name}"
        yield WorldFile(child, path, info)
        if stat.S_ISDIR(info.st_mode):
            yield from _below(world, child, path)


def _inspect(world: Path, path: Path) -> os.stat_result:
    """The lstat of a file or directory that any system can hold; SpecError for anything else."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(path.name)
        raise SpecError(f"the name {name!r} is not UTF-8", where=ascii(str(path.parent)), hint="rename the file") from None
    with _readable(path):
        info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        raise _link(world, path)
    kind = _KINDS.get(stat.S_IFMT(info.st_mode))
    if kind is not None:
        raise SpecError(f"is {kind}: a world holds only files and directories", where=str(path), hint="remove it")
    return info


def _link(world: Path, path: Path) -> SpecError:
    target = str(path.readlink())
    inside = Path(os.path.realpath(path)).is_relative_to(world.resolve())
    side = "inside the world" if inside else "outside the world"
    return SpecError(f"is a symbolic link to {target!r}, {side}", where=str(path), hint="put a copy of the file in its place")


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("does not exist", where=str(path), hint="create it, or correct world.yaml") from None
    except PermissionError:
        raise SpecError("can't be read", where=str(path), hint="give yourself the right to read it: chmod u+rX") from None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error}") from error
