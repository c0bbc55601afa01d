"""Chat completions over HTTP, with tool calls. The proxy comes from HTTP_PROXY and HTTPS_PROXY."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

STAND_IN = "stand-in"
STAND_IN_URL = "http://model-stand-in/v1"
DEFAULT_URL = "https://api.openai.com/v1"
TRIES = 4
FIRST_BACKOFF_S = 0.5
MAX_RETRY_AFTER_S = 20.0


class ProviderError(Exception):
    """The endpoint stayed unreachable or busy over all tries."""


class RequestRefused(Exception):
    """The endpoint answered that the request is wrong; trying again can't help."""


class Model:
    """deadline: monotonic time after which no call waits any longer."""

    def __init__(self, config: dict[str, Any], deadline: float) -> None:
        self.name = str(config["model"])
        default = STAND_IN_URL if self.name == STAND_IN else DEFAULT_URL
        self._url = str(config.get("base_url") or default).rstrip("/") + "/chat/completions"
        self._deadline = deadline

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Raise ProviderError after 4 tries on 429, 5xx or no connection, RequestRefused on another 4xx."""
        request = urllib.request.Request(self._url, json.dumps(body | {"model": self.name}).encode(), _headers(), method="POST")
        problem, retry_after = "", None
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self._pause(attempt, retry_after))
            try:
                with urllib.request.urlopen(request, timeout=max(1.0, self._deadline - time.monotonic())) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                if error.code != 429 and error.code < 500:
                    raise RequestRefused(problem) from None
                retry_after = error.headers.get("Retry-After")
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                problem, retry_after = f"{type(error).__name__}: {error}", None
        raise ProviderError(f"{TRIES} tries failed, the last with {problem}")

    def _pause(self, attempt: int, retry_after: str | None) -> float:
        wait = FIRST_BACKOFF_S * 2 ** (attempt - 1)
        if retry_after is not None and retry_after.strip().isdecimal():
            wait = min(float(retry_after), MAX_RETRY_AFTER_S)
        return max(0.0, min(wait, self._deadline - time.monotonic()))


def _headers() -> dict[str, str]:
    key = os.environ.get("MODEL_API_KEY")
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def token_classes(usage: dict[str, Any]) -> dict[str, int]:
    """The provider's counts as disjoint classes: its prompt tokens include cached ones, its completion tokens reasoning."""
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _count(usage.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_uncached": int(usage["prompt_tokens"]) - cached,
        "cache_read": cached,
        "cache_write_5m": 0,
        "cache_write_1h": 0,
        "output": int(usage["completion_tokens"]),
        "reasoning": reasoning,
    }


def _count(details: dict[str, Any] | None, name: str) -> int:
    """A class that a provider leaves out is one it doesn't have."""
    return int((details or {}).get(name) or 0)
