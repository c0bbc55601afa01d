"""Who is asking: a token that names a user and a matter, and that only the holder of the services' key can make."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass

from matter_desk.places import run_dir


@dataclass(frozen=True)
class Session:
    """matter: None in a world without matters."""

    user: str
    matter: str | None


def key() -> bytes:
    return (run_dir() / "key").read_bytes()


def issue(session: Session, key: bytes) -> str:
    body = base64.urlsafe_b64encode(json.dumps([session.user, session.matter]).encode())
    return f"{body.decode()}.{_signature(body, key)}"


def opened(token: str, key: bytes) -> Session | None:
    """None when the token was not made with this key."""
    body, _, signature = token.partition(".")
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), _signature(body.encode("utf-8", "replace"), key).encode()):
        return None
    try:
        user, matter = json.loads(base64.urlsafe_b64decode(body))
    except (ValueError, binascii.Error):
        return None
    return Session(user, matter)


def _signature(body: bytes, key: bytes) -> str:
    return hmac.digest(key, body, "sha256").hex()
