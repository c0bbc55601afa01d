"""Byte code for the app's modules: only what is missing or no longer fits its source is made."""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path

from matter_desk.places import APP


def main() -> int:
    """Checked by the source's hash, because a checkout gives every file a new time."""
    made = [source for source in sorted((APP / "matter_desk").rglob("*.py")) if not _fits(source)]
    for source in made:
        py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    print(f"compiled {len(made)} modules")
    return 0


def _fits(source: Path) -> bool:
    compiled = Path(importlib.util.cache_from_source(str(source)))
    if not compiled.exists():
        return False
    header = compiled.read_bytes()[:16]
    return header[:4] == importlib.util.MAGIC_NUMBER and header[8:16] == importlib.util.source_hash(source.read_bytes())
