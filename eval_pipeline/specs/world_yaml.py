"""Changing a few keys of a world.yaml that a person wrote: every other line stays as it is, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """Each key with its new value, in its place or at the end; None takes it out. The file must be one that parses."""
    root: Any = yaml.compose(text, yaml.SafeLoader)
    if root.flow_style:
        data = {**yaml.safe_load(text), **changes}
        return yaml.safe_dump(
            {key: value for key, value in data.items() if value is not None}, sort_keys=False, allow_unicode=True
        )
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    places = {key.value: (key.start_mark.line, _end(value)) for key, value in root.value}
    for name in sorted(places.keys() & changes.keys(), key=lambda name: -places[name][0]):
        first, end = places[name]
        lines[first:end] = _line(name, changes[name])
    for name in (name for name in changes if name not in places):
        lines += _line(name, changes[name])
    return "".join(lines)


def _end(value: Any) -> int:
    mark = value.end_mark
    return mark.line if mark.column == 0 else mark.line + 1


def _line(name: str, value: Any) -> list[str]:
    return [] if value is None else [f"{name}: {_flow(value)}\n"]


def _flow(value: Any) -> str:
    said = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return said.removesuffix("...\n").strip()
