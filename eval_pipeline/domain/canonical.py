"""One spelling for one value, so that equal things have equal digests on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Made once: `json.dumps` would make one for each value
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no blanks, no NaN. Raises ValueError on NaN and infinities, TypeError on other types."""
    return _ENCODER.encode(value)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()
