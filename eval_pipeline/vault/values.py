"""The values of synced secrets: one private file a version, in memory where the machine has a file system for that."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from functools import cached_property
from pathlib import Path

from eval_pipeline.errors import InfrastructureError

MEMORY_ROOT = Path("/dev/shm")
_KEY_BYTES = 32
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Values:
    """A version is a keyed hash of name and value: equal values have equal versions here, and it tells nothing without the key.

    The key is this state directory's own, so that versions of two machines can't be compared.
    """

    def __init__(self, state_dir: Path) -> None:
        self._home = state_dir / "secrets"
        self._tag = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """One process at a time writes or removes values."""
        handle = os.open(own_private(self._home) / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            flock(handle, LOCK_EX)
            yield
        finally:
            os.close(handle)

    @property
    def folder(self) -> Path:
        """Where the values are; made when absent."""
        place = self._place
        return own_private(place if place.parent == MEMORY_ROOT else own_private(self._home) / place.name)

    @cached_property
    def _place(self) -> Path:
        return MEMORY_ROOT / f"evals-secrets-{self._tag}" if _is_memory(MEMORY_ROOT) else self._home / "values"

    def put(self, name: str, value: str) -> str:
        """Keep the value and return its version; under `exclusive`."""
        version = _version(self._key(), name, value)
        if self.get(name, version) is None:
            path = self.folder / _file(name, version)
            partial = _partial(path)
            _write_new(partial, _encoded(value))
            partial.rename(path)
        return version

    def get(self, name: str, version: str) -> str | None:
        """None when it isn't kept here (any more), or is not whole."""
        try:
            data = _read(self.folder / _file(name, version))
        except FileNotFoundError:
            return None
        value = data.decode("utf-8", "surrogateescape")
        return value if hmac.compare_digest(_version(self._key(), name, value), version) else None

    def names(self) -> frozenset[str]:
        """Of the files that are here: they change with what is held. Makes no folder: whoever only looks leaves nothing behind."""
        try:
            if self._place.lstat().st_uid != os.geteuid():  # nothing of ours is in there
                return frozenset()
            return frozenset(name for path in self._place.iterdir() if not (name := path.name).startswith("."))
        except FileNotFoundError:
            return frozenset()

    def held(self) -> dict[tuple[str, str], str]:
        """All that are kept here, by name and version."""
        named = [file.rpartition(".") for file in self.names()]
        values = {(name, version): self.get(name, version) for name, _, version in named}
        return {key: value for key, value in values.items() if value is not None}

    def token(self, purpose: str) -> str:
        """A secret of our own: the same for the same purpose, as long as the state directory lives."""
        return hmac.new(self._key(), b"token\0" + purpose.encode(), hashlib.sha256).hexdigest()

    def keep_only(self, wanted: set[tuple[str, str]]) -> int:
        """Remove every value but those of the (name, version) pairs; under `exclusive`. Returns how many went."""
        names = {_file(name, version) for name, version in wanted}
        gone = [path for path in self.folder.iterdir() if path.name not in names]
        for path in gone:
            path.unlink(missing_ok=True)
        return len(gone)

    def _key(self) -> bytes:
        path = own_private(self._home) / "key"
        with suppress(FileNotFoundError):
            return self._whole(path, _read(path))
        partial = _partial(path)
        _write_new(partial, os.urandom(_KEY_BYTES))
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(partial, path)
        partial.unlink()
        return self._whole(path, _read(path))

    def _whole(self, path: Path, key: bytes) -> bytes:
        if len(key) != _KEY_BYTES:
            raise InfrastructureError(
                f"{path} holds {len(key)} bytes, and the key of this state directory's secrets has {_KEY_BYTES}",
                hint="remove it: a new key is made, and every secret gets a new version at the next `evals secrets sync`",
            )
        return key


def own_private(folder: Path) -> Path:
    """Make the directory, mode 0700, when absent. Raises InfrastructureError when it is a link, or another's, or open to others."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise InfrastructureError(
            f"{folder} is not a directory of our own with mode 0700, and secrets would go there",
            hint="look who made it, and remove it",
        )
    return folder


def _is_memory(root: Path) -> bool:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    return any(mount[1:3] == [str(root), "tmpfs"] for mount in mounts) and os.access(root, os.W_OK)


def _version(key: bytes, name: str, value: str) -> str:
    return hmac.new(key, name.encode() + b"\0" + _encoded(value), hashlib.sha256).hexdigest()[:32]


def _encoded(value: str) -> bytes:
    """What an environment held that is no UTF-8 comes back as it was."""
    return value.encode("utf-8", "surrogateescape")


def _file(name: str, version: str) -> str:
    return f"{name}.{version}"


def _read(path: Path) -> bytes:
    with os.fdopen(os.open(path, _READ), "rb") as file:
        return file.read()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def _write_new(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
