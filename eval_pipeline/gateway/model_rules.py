"""What a call may ask of a provider: tokens for tokens. What makes the provider fetch, keep or run something is refused: it would be
a way out of the sandbox, or into another one's calls, past everything that is counted here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from eval_pipeline.domain.usage import Usage
from eval_pipeline.gateway.model_shapes import Json, Shape

ASSUMED_OUTPUT = 32_768
"""Tokens, of a call that names no limit of its own."""
MAX_VALUES = 100_000  # of a body's objects and lists: reading them holds up everything else that this process serves
_MAX_COUNT = 10**7
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_TOOLS: dict[str, set[str | None]] = {"openai": {"function", "custom"}, "anthropic": {None, "custom"}}
_TIERS = {None, "auto", "default", "flex", "standard", "standard_only"}
_REFUSED = (
    "background",
    "store",
    "previous_response_id",
    "conversation",
    "prompt",
    "mcp_servers",
    "container",
    "web_search_options",
    "inference_geo",
)
_LINKS = ("image_url", "file_url", "audio_url", "video_url", "file_id")
_BETAS = (
    "prompt-caching-",
    "extended-cache-ttl-",
    "interleaved-thinking-",
    "fine-grained-tool-streaming-",
    "token-efficient-tools-",
    "structured-outputs-",
    "output-128k-",
    "max-tokens-3-5-sonnet-",
)


def forbidden(shape: Shape, body: Json) -> str | None:
    """Why the call is not passed on; None: it is."""
    for name in _REFUSED:
        if body.get(name):
            return f"`{name}` is not passed on"
    if body.get("service_tier") not in _TIERS or body.get("speed") not in (None, "standard"):
        return "a tier of service with a price of its own is not passed on"
    return _tools(shape, body.get("tools")) or next(
        (said for part in ("messages", "input", "system") if (said := _fetches(body.get(part)))), None
    )


def _tools(shape: Shape, tools: Any) -> str | None:
    for tool in cast(list[Any], tools) if isinstance(tools, list) else [tools] if tools else []:
        kind = cast(Json, tool).get("type") if isinstance(tool, dict) else type(tool).__name__
        if not (kind is None or isinstance(kind, str)) or kind not in _TOOLS[shape.provider]:
            return f"tools of the type {str(kind)[:80]} run at the provider and are not passed on; those of the agent's own are"
    return None


def _fetches(part: Any) -> str | None:
    """What a tool is called with, or answered as text, is the agent's own: nobody fetches it."""
    rest: list[Any] = [part]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += cast(list[Any], one)
        elif isinstance(one, dict):
            found = cast(Json, one)
            if (said := _links(found)) is not None:
                return said
            rest += [inner for name, inner in found.items() if not (name == "input" and found.get("type") == "tool_use")]
    return None


def _links(found: Json) -> str | None:
    kind = found.get("type")
    if kind == "item_reference" or ("id" in found and set(found) <= {"id", "type"}):
        return "references to earlier answers are not passed on"
    if kind in ("url", "file") and (found.get("url") or found.get("file_id")):
        return "content at a URL is not passed on; send it as data"
    for name in _LINKS:
        link = found.get(name)
        link = cast(Json, link).get("url") if isinstance(link, dict) else link
        if link and not (isinstance(link, str) and link[:5].lower() == "data:"):
            return f"`{name}` may hold a data: URL only"
    return None


def too_many_values(data: bytes) -> bool:
    """Whether JSON holds more than MAX_VALUES, told without reading it: what stands in its texts is no value. Of what is no JSON, anything."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * (MAX_VALUES + 1):  # at most a name and a text a value, of two marks each
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return sum(outside.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES


def known_betas(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, of `anthropic-beta` only what changes nothing but the model's own answer."""
    passed = {name: value for name, value in headers.items() if name.lower() != "anthropic-beta"}
    asked = [one.strip() for name, value in headers.items() if name.lower() == "anthropic-beta" for one in value.split(",")]
    betas = [one for one in asked if one.startswith(_BETAS)]
    return passed | ({"anthropic-beta": ",".join(betas)} if betas else {})


def most(model: str, body: Json, n_bytes: int) -> Usage:
    """No call uses more: a token is a byte at least."""
    limits = [count for name in _OUTPUT_LIMITS if (count := _count(body.get(name))) is not None]
    answers = max(1, _count(body.get("n")) or 1)
    return Usage(model=model, input_uncached=n_bytes, output=min(_MAX_COUNT, max(limits, default=ASSUMED_OUTPUT) * answers))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
