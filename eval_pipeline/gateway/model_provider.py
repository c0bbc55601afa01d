"""Calls to a provider: a bounded number at once for the whole host, tried again when it is the provider's or the line's fault."""

from __future__ import annotations

import asyncio
import email.utils
import io
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
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
    """Of one provider. not_before: of a model, by the loop's clock; one that has had enough of it is left alone by every sandbox."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CALLS))
    not_before: dict[str, float] = field(default_factory=dict[str, float])

    async def turn(self, model: str) -> None:
        loop = asyncio.get_running_loop()
        while (left := self.not_before.get(model, 0.0) - loop.time()) > 0:
            await asyncio.sleep(left)
        self.not_before.pop(model, None)

    def pause(self, model: str, pause_s: float) -> None:
        self.not_before[model] = max(self.not_before.get(model, 0.0), asyncio.get_running_loop().time() + pause_s)


@dataclass(kw_only=True)
class Answer:
    """response None: nothing came. Of one that is no stream the body is read already."""

    status: int | None
    tries: int
    response: aiohttp.ClientResponse | None = None
    body: bytes | None = None
    fault: Fault | None = None
    error: str | None = None
    again: bool = True  # may be tried again, if its fault is one that passes
    lost: bool = False  # it may have been billed, and its answer is not, or not wholly, here
    lost_tries: int = 0  # the same, of tries before


class Providers:
    def __init__(self, silence_s: float = _SILENCE_S) -> None:
        self._pools: dict[str, Pool] = {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def call(
        self, url: str, model: str, body: bytes, headers: Mapping[str, str], before: Callable[[], None]
    ) -> AsyncGenerator[Answer]:
        """The place is held until the answer is through. Redirects are not followed: the key goes nowhere else.

        before: is asked in the place, at each try, and may raise: then nothing more goes out.
        """
        pool = self._pools.setdefault(urlsplit(url).netloc, Pool())
        tries = lost = 0
        while True:
            tries += 1
            await pool.turn(model)
            async with pool.places:
                before()
                answer = await self._once(url, body, headers)
                answer.tries, answer.lost_tries = tries, lost
                lost += answer.lost
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
                pool.pause(model, pause_s)
            _log.info("%s: %s; again in %.1f s", url, answer.error, pause_s)
            await asyncio.sleep(pause_s)

    async def _once(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            response = await self._session.post(url, data=io.BytesIO(body), headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            said = str(error) or type(error).__name__
            return Answer(status=None, tries=1, fault="unreachable", error=f"could not be reached: {said}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return _lost("gave no answer", error)
        if response.status == 200 and response.content_type == "text/event-stream":
            return Answer(status=200, tries=1, response=response)
        try:
            read = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            response.close()
            return _lost("broke off its answer", error, billed=response.status == 200)
        fault, said = _blame(response.status)
        return Answer(status=response.status, tries=1, response=response, body=read, fault=fault, error=said)


def _lost(what: str, error: Exception, *, billed: bool = True) -> Answer:
    """Who was silent for as long as we wait may be at work still: asked again it would work, and cost, twice."""
    said = f"{what}: {str(error) or type(error).__name__}"
    return Answer(status=None, tries=1, fault="cut", error=said, lost=billed, again=not isinstance(error, TimeoutError))


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
    if tries >= MAX_TRIES or not answer.again or not (answer.fault in ("unreachable", "cut") or answer.status in _AGAIN):
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
