"""Calls to a provider: a bounded number at once for the whole host, tried again when it is the provider's or the line's fault."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from eval_pipeline.gateway.model_log import Fault

MAX_CALLS = 32  # of one provider at once, whatever the number of sandboxes
MAX_TRIES = 4
MAX_PAUSE_S = 60.0  # who asks for more is not waited for: the caller hears of it
_BASE_PAUSE_S = 0.5
_CONNECT_S, _SILENCE_S = 20.0, 600.0
_AGAIN = {429, 500, 502, 503, 504, 529}
_log = logging.getLogger("gateway")


@dataclass
class Pool:
    """Of one provider. not_before: by the loop's clock; a provider that has had enough is left alone by every sandbox."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CALLS))
    not_before: float = 0.0

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        while (left := self.not_before - loop.time()) > 0:
            await asyncio.sleep(left)


@dataclass(kw_only=True)
class Answer:
    """response None: nothing came. Of one that is no stream the body is read already."""

    status: int | None
    tries: int
    response: aiohttp.ClientResponse | None = None
    body: bytes | None = None
    fault: Fault | None = None
    error: str | None = None
    lost: bool = False  # an answer that may have been billed broke off


class Providers:
    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def call(self, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[Answer]:
        """The place is held until the answer is through. Redirects are not followed: the key goes nowhere else."""
        pool = self._pools.setdefault(urlsplit(url).netloc, Pool())
        tries = 0
        lost = False
        while True:
            tries += 1
            await pool.turn()
            async with pool.places:
                answer = await self._once(url, body, headers)
                answer.tries, answer.lost = tries, (lost := lost or answer.lost)
                pause_s = _pause_s(answer, tries)
                if pause_s is None:
                    try:
                        yield answer
                    finally:
                        if answer.response is not None:
                            answer.response.close()
                    return
                if answer.response is not None:
                    answer.response.close()
            if answer.status == 429:
                pool.not_before = max(pool.not_before, asyncio.get_running_loop().time() + pause_s)
            _log.info("%s: %s; again in %.1f s", url, answer.error, pause_s)
            await asyncio.sleep(pause_s)

    async def _once(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            return Answer(status=None, tries=1, fault="unreachable", error=f"could not be reached: {said}")
        if response.status == 200 and response.content_type == "text/event-stream":
            return Answer(status=200, tries=1, response=response)
        try:
            read = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = f"its answer broke off: {str(error) or type(error).__name__}"
            response.close()
            return Answer(status=None, tries=1, fault="cut", error=said, lost=response.status == 200)
        fault, said = _blame(response.status)
        return Answer(status=response.status, tries=1, response=response, body=read, fault=fault, error=said)


def _blame(status: int) -> tuple[Fault | None, str | None]:
    if status == 429:
        return "rate_limit", "answered 429"
    if status >= 500:
        return "provider", f"answered {status}"
    if status == 401:
        return "key", "answered 401: it does not take our key"
    return None, None


def _pause_s(answer: Answer, tries: int) -> float | None:
    """How long before the next try; None: this is the answer."""
    if tries >= MAX_TRIES or not (answer.fault in ("unreachable", "cut") or answer.status in _AGAIN):
        return None
    asked = None if answer.response is None else retry_after_s(answer.response.headers)
    if asked is not None:
        return asked if asked <= MAX_PAUSE_S else None
    return _BASE_PAUSE_S * 2 ** (tries - 1) * random.uniform(0.5, 1.0)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """As seconds or as a date; None when the provider asks for nothing that can be read."""
    try:
        if (millis := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(millis) / 1000)
        asked = headers.get("retry-after")
        if asked is None:
            return None
        return max(0.0, float(asked) if asked.strip()[:1].isdigit() else _until(asked))
    except ValueError:
        return None


def _until(date: str) -> float:
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
