"""One builder of a thing at a time: on this host by a lock on a file, over several hosts by a lease in the ledger."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from eval_pipeline.errors import InfrastructureError, LedgerUnavailable
from eval_pipeline.store.build_leases import LEASE_S, BuildLeases

_POLL_S = 0.05
_LEASE_POLL_S = 0.5
RENEW_S = LEASE_S / 4


class BuildLocks(Protocol):
    """Keys name layers, or what else only one may do at a time in a backend's place."""

    def hold(self, key: str) -> AbstractAsyncContextManager[None]:
        """Waits until nobody else holds the key."""
        ...

    def hold_if_free(self, key: str) -> AbstractAsyncContextManager[bool]:
        """Whether nobody had it; it is held then."""
        ...

    def held(self, key: str) -> bool:
        """Whether somebody holds it now."""
        ...


class HostLocks:
    """Among the processes of this host: a lock ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncGenerator[None]:
        handle = self._open(key)
        try:
            while not _try_lock(handle):
                await asyncio.sleep(_POLL_S)
            yield
        finally:
            os.close(handle)

    @asynccontextmanager
    async def hold_if_free(self, key: str) -> AsyncGenerator[bool]:
        handle = self._open(key)
        try:
            yield _try_lock(handle)
        finally:
            os.close(handle)

    def held(self, key: str) -> bool:
        try:
            handle = os.open(self._file(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)

    def _open(self, key: str) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        return os.open(self._file(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.lock"


def _try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class LeaseLocks:
    """Among all hosts of an installation. Who loses the lease, because it could not be renewed in time, is stopped in its work."""

    def __init__(self, leases: BuildLeases) -> None:
        self._leases = leases

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncGenerator[None]:
        holder = uuid.uuid4().hex
        while not await asyncio.to_thread(self._leases.take, key, holder):
            await asyncio.sleep(_LEASE_POLL_S)
        async with self._kept(key, holder):
            yield

    @asynccontextmanager
    async def hold_if_free(self, key: str) -> AsyncGenerator[bool]:
        holder = uuid.uuid4().hex
        if not await asyncio.to_thread(self._leases.take, key, holder):
            yield False
            return
        async with self._kept(key, holder):
            yield True

    def held(self, key: str) -> bool:
        return self._leases.held(key)

    @asynccontextmanager
    async def _kept(self, key: str, holder: str) -> AsyncGenerator[None]:
        body = asyncio.current_task()
        assert body is not None
        keeping = asyncio.ensure_future(self._renew(key, holder))
        stopped = False

        def stop(ended: asyncio.Future[None]) -> None:
            nonlocal stopped
            if not ended.cancelled():
                stopped = body.cancel()

        keeping.add_done_callback(stop)
        try:
            yield
        except asyncio.CancelledError:
            if stopped and body.uncancel() == 0:
                raise InfrastructureError(
                    f"the lease on {key} was lost: it could not be renewed for {LEASE_S} s, and another builder may have it",
                    hint="the same command goes on where it stopped",
                ) from None
            raise
        finally:
            keeping.cancel()
            await asyncio.shield(asyncio.to_thread(self._leases.release, key, holder))

    async def _renew(self, key: str, holder: str) -> None:
        """Ends when the lease is lost."""
        kept_at = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                if not await asyncio.to_thread(self._leases.renew, key, holder):
                    return
                kept_at = time.monotonic()
            except LedgerUnavailable:
                if time.monotonic() - kept_at > LEASE_S:
                    return
