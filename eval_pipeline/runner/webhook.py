"""One JSON text to a webhook, within a time that no server can draw out."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any

TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """error: None when the text was taken. retry_after_s: what the server asked for; None when it asked for nothing."""

    error: str | None
    retry_after_s: float | None = None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the text to a place that nobody named."""

    def redirect_request(self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def post(url: str, text: str, key: str, timeout_s: float = TIMEOUT_S) -> Reply:
    """POST {"text": text}. key: of the notice, told in a header, the same each time it is sent. Never raises; never says the URL."""
    found: list[Reply] = []
    worker = threading.Thread(target=lambda: found.append(_post(url, text, key, timeout_s)), name="webhook", daemon=True)
    worker.start()
    worker.join(timeout_s)  # a socket's own time limit begins anew with each byte
    return found[0] if found else Reply(error=f"no answer within {timeout_s:.0f} s")


def _post(url: str, text: str, key: str, timeout_s: float) -> Reply:
    body = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": hashlib.sha256(key.encode()).hexdigest()}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error=f"it answered {error.code}", retry_after_s=_retry_after_s(error.headers))
    except Exception as error:  # noqa: BLE001 - a notice that can't be sent is tried again, whatever the reason
        return Reply(error=_without(url, f"{type(error).__name__}: {error}"))
    return Reply(error=None)


def _retry_after_s(headers: Message) -> float | None:
    """Seconds only: a date would be by the server's clock."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _without(url: str, text: str) -> str:
    parts = [url, url.partition("://")[2], *[part for part in url.split("/") if len(part) > 5]]
    for part in parts:
        text = text.replace(part, "***")
    return text[:500]
