"""A judge's calls on the wire: a request that a library wrote, sent again around another text, and the replies that need no library.

A library writes each form of request once and reads what is not plain; by it alone a call would take ten times the CPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from eval_pipeline.domain.usage import Usage

if TYPE_CHECKING:
    import aiohttp

_IDLE_S = 5.0
"""What idles longer a provider may have closed already: a call on it would be lost."""
_OURS = {"host", "connection", "content-length", "accept-encoding"}
_UNPACKED = {"content-length", "content-encoding", "transfer-encoding"}
_INVISIBLE = re.compile(r"[\u200b-\u200d\u2060\ufeff]|\\u(?:200[bcd]|2060|feff)", re.IGNORECASE)
"""With these the library marks what a server could take for control tokens: only it takes them out again."""
_COUNTED = {"prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"}
_COUNTED |= {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
_COUNTED |= {"ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Before and after the text, which stands between them as JSON."""

    url: str
    headers: Mapping[str, str]
    before: str
    after: str

    def body(self, text: str) -> bytes:
        return f"{self.before}{json.dumps(text)}{self.after}".encode()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """body: unpacked, as the headers say."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request_around(text: str, url: str, headers: Mapping[str, str], body: bytes) -> Request | None:
    """None: the text does not stand in it just once, as it is."""
    around = json.dumps(json.loads(body)).split(json.dumps(text))
    kept = {name: value for name, value in headers.items() if name.lower() not in _OURS}
    return Request(url=url, headers=kept, before=around[0], after=around[1]) if len(around) == 2 else None


class Wire:
    """An async context manager. Redirects are not followed: the key goes nowhere else."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        proxies = {} if proxy_bypass(parts.netloc) else getproxies()
        self._proxy = proxies.get(parts.scheme) or proxies.get("all")

    async def __aenter__(self) -> Wire:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar(), proxy=self._proxy
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Raises aiohttp.ClientError and OSError."""
        response: aiohttp.ClientResponse
        async with self._session.post(url, headers=headers, data=body, allow_redirects=False) as response:
            kept = {name: value for name, value in response.headers.items() if name.lower() not in _UNPACKED}
            return Reply(status=response.status, headers=kept, body=await response.read())


def plain_reply(provider: str, reply: Reply, tool: str, model: str) -> tuple[str, Usage] | None:
    """The arguments of the one call of the tool, as JSON, and what it took. None: it says more, or something else."""
    if reply.status != 200:
        return None
    try:
        said = json.loads(reply.body)
    except ValueError:
        return None
    found = _messages(said, tool) if provider == "anthropic" else _chat(said, tool)
    usage = None if found is None else _usage(provider, said.get("usage"), model)
    return None if found is None or usage is None or _INVISIBLE.search(found) else (found, usage)


def _chat(said: Any, tool: str) -> str | None:
    match said:
        case {"choices": [{"finish_reason": "stop" | "tool_calls", "message": {"tool_calls": [call]} as message}]}:
            if message.get("refusal"):
                return None
            match call:
                case {"type": "function", "function": {"name": name, "arguments": str(arguments)}} if name == tool:
                    return arguments
    return None


def _messages(said: Any, tool: str) -> str | None:
    match said:
        case {"stop_reason": "tool_use", "content": [{"type": "tool_use", "name": name, "input": dict(given)}]} if name == tool:
            return json.dumps(given)
    return None


def _usage(provider: str, told: Any, model: str) -> Usage | None:
    """None: it is not told, or in counts that only the library knows."""
    counts = dict(_counts(told))
    if any(value < 0 or (value and name not in _COUNTED) for name, value in counts.items()):
        return None
    if provider == "anthropic":
        read, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        uncached, hour = counts.get("input_tokens", 0), counts.get("ephemeral_1h_input_tokens", 0)
        output = counts.get("output_tokens", 0)
    else:
        read, written, hour = counts.get("cached_tokens", 0), 0, 0
        uncached, output = counts.get("prompt_tokens", 0) - read, counts.get("completion_tokens", 0)
    reasoning = counts.get("reasoning_tokens", 0)
    if uncached < 0 or hour > written or reasoning > output or uncached + read + written + output == 0:
        return None
    return Usage(
        model=model,
        input_uncached=uncached,
        cache_read=read,
        cache_write_5m=written - hour,
        cache_write_1h=hour,
        output=output,
        reasoning=reasoning,
    )


def _counts(told: Any) -> Iterator[tuple[str, int]]:
    for name, value in cast("Mapping[str, Any]", told).items() if isinstance(told, dict) else ():
        if isinstance(value, dict):
            yield from _counts(value)
        elif isinstance(value, int | float):
            yield name, value if isinstance(value, int) else -1
