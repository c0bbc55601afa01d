"""The world's permissions: who may read which document."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

EVERYBODY = "*"
OPEN: dict[str, Any] = {"default": [EVERYBODY], "rules": []}


def permissions_file(world: Path) -> Path | None:
    """`permissions` or `permissions.yaml`: both hold JSON. None in a world that restricts nothing."""
    return next((path for path in (world / "permissions", world / "permissions.yaml") if path.is_file()), None)


def load_permissions(world: Path) -> dict[str, Any]:
    file = permissions_file(world)
    return OPEN if file is None else json.loads(file.read_text(encoding="utf-8"))


def readers(permissions: dict[str, Any], path: str) -> list[str]:
    """The first rule that matches the path decides; else the default."""
    for rule in permissions["rules"]:
        if fnmatch.fnmatchcase(path, rule["match"]):
            return list(dict.fromkeys(rule["readers"]))
    return list(dict.fromkeys(permissions["default"]))
