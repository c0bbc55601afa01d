"""The editable space: what a proposal may say, and the built-in search through it. Pure, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.research.goal import Range, Space
from eval_pipeline.specs.lock import canonical_config

Config = dict[str, Any]

_TRIES = 200
_DIGITS = 4
_SPAN = 0.15
_EXPLORES = 0.2
_GRID_MAX = 10_000


def complaint(space: Space, baseline: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Why `config` is no whole config within the space; None: it is one."""
    for key in sorted({*baseline, *config} - set(space.config)):
        if key not in config or key not in baseline or not _same(config[key], baseline[key]):
            known = ", ".join(sorted(space.config)) or "none"
            return f"config: {key!r} may not be changed from the baseline's (it may: {known})"
    for key, allowed in space.config.items():
        if key not in config:
            return f"config: {key!r} is missing"
        if (wrong := _outside(allowed, config[key])) is not None:
            return f"config: {key} {wrong}, found {_short(config[key])}"
    return None


def _outside(allowed: Range | Sequence[Any], value: Any) -> str | None:
    if not isinstance(allowed, Range):
        fits = any(_same(value, choice) for choice in allowed)
        return None if fits else f"must be one of {_short(list(allowed))}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed.min <= value <= allowed.max:
        return f"must be a number from {allowed.min:g} to {allowed.max:g}"
    if allowed.whole and not float(value).is_integer():
        return "must be a whole number"
    grid = _grid(allowed)
    if grid is not None and not any(abs(value - point) < 1e-9 for point in grid):
        return f"must be {allowed.min:g} and a multiple of the step {allowed.step or 1:g}"
    return None


def _same(a: Any, b: Any) -> bool:
    """1 and 1.0 are one number; True is none."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    return canonical_json(a) == canonical_json(b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _grid(allowed: Range) -> list[int | float] | None:
    """None: too many to be listed."""
    step = allowed.step if allowed.step is not None else 1 if allowed.whole else None
    if step is None or (allowed.max - allowed.min) / step > _GRID_MAX:
        return None
    count = int((allowed.max - allowed.min) / step + 1e-9) + 1
    points = [allowed.min + index * step for index in range(count)]
    return points if allowed.whole else [round(point, 12) for point in points]


def search(kind: str, space: Space, incumbent: Config, tried: Sequence[Config], seed: int, step: int) -> Config | None:
    """The next config, none of `tried`; None when nothing new was found. step: of the research, so that none depends on the last draw."""
    rng = np.random.default_rng([seed & 0xFFFFFFFF, step])
    known = {_spelt(config) for config in tried}
    if kind == "local" and rng.random() >= _EXPLORES:
        near = [config for config in _neighbours(space, incumbent, rng) if _spelt(config) not in known]
        if near:
            return near[int(rng.integers(len(near)))]
    for _ in range(_TRIES):
        config = {**incumbent, **{key: _draw(allowed, rng) for key, allowed in space.config.items()}}
        if _spelt(config) not in known:
            return config
    return next((config for config in _all(space, incumbent) if _spelt(config) not in known), None)


def _spelt(config: Config) -> str:
    return canonical_json(canonical_config(config))


def _draw(allowed: Range | Sequence[Any], rng: np.random.Generator) -> Any:
    points = _grid(allowed) if isinstance(allowed, Range) else list(allowed)
    if points is not None:
        return points[int(rng.integers(len(points)))]
    assert isinstance(allowed, Range)
    drawn = rng.uniform(allowed.min, allowed.max)
    return round(float(drawn)) if allowed.whole else round(float(drawn), _DIGITS)


def _neighbours(space: Space, incumbent: Config, rng: np.random.Generator) -> Iterator[Config]:
    """The incumbent with one key changed: a step or two up or down, or any other choice."""
    for key, allowed in space.config.items():
        for value in _near(allowed, incumbent.get(key), rng):
            yield {**incumbent, key: value}


def _near(allowed: Range | Sequence[Any], value: Any, rng: np.random.Generator) -> list[Any]:
    if not isinstance(allowed, Range):
        return [choice for choice in allowed if not _same(choice, value)]
    points = _grid(allowed)
    if not isinstance(value, int | float):
        return [_draw(allowed, rng)]
    if points is not None:
        at = min(range(len(points)), key=lambda index: abs(points[index] - value))
        return [points[index] for index in (at - 2, at - 1, at + 1, at + 2) if 0 <= index < len(points)]
    width = _SPAN * (allowed.max - allowed.min)
    drawn = [min(max(value + sign * abs(rng.normal(0.0, width)), allowed.min), allowed.max) for sign in (-1.0, 1.0)]
    return [round(float(one)) if allowed.whole else round(float(one), _DIGITS) for one in drawn]


def _all(space: Space, incumbent: Config) -> Iterator[Config]:
    """Every config, where each key has a list of values and together they are few enough."""
    lists: dict[str, list[Any]] = {}
    total = 1
    for key, allowed in space.config.items():
        points = _grid(allowed) if isinstance(allowed, Range) else list(allowed)
        if points is None:
            return
        lists[key] = points
        total *= len(points)
    for index in range(min(total, _GRID_MAX)):
        config, rest = dict(incumbent), index
        for key, points in lists.items():
            rest, at = divmod(rest, len(points))
            config[key] = points[at]
        yield config
