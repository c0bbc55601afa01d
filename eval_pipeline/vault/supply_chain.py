"""What an app's lock files say of the packages it takes, and how old each of them is. Pure: no network, no files.

A package is as old as the youngest of its files: a file that was added to an old version later is as new as any. What has no publish
time is unknown, which is never fine.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Literal, cast

from eval_pipeline.errors import SpecError

Ecosystem = Literal["pypi", "npm"]
Json = Mapping[str, Any]

_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(?:txt|lock)")
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==\s*([^\s;,#\\]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NODE = "node_modules/"


class Age(StrEnum):
    OK = "ok"
    YOUNG = "young"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Package:
    """version: None where the file pins none. published_at: None where it is not known. why: of what can't be known, the reason."""

    ecosystem: Ecosystem
    name: str
    version: str | None
    lock: str
    published_at: datetime | None = None
    why: str | None = None

    @property
    def key(self) -> str:
        return f"{self.ecosystem}/{self.name}/{self.version}"


@dataclass(frozen=True, kw_only=True)
class Aged:
    """age_days: None where it is unknown."""

    package: Package
    age: Age
    age_days: float | None


def is_lock(path: str) -> bool:
    name = PurePosixPath(path).name
    apart = {"node_modules", ".venv", "site-packages"} & set(PurePosixPath(path).parts)
    return not apart and (name in ("uv.lock", "package-lock.json", "npm-shrinkwrap.json") or bool(_REQUIREMENTS.fullmatch(name)))


def read_lock(path: str, content: bytes) -> list[Package]:
    """The packages that a lock file takes from an index, each version once. Raises SpecError when it can't be read."""
    name = PurePosixPath(path).name
    try:
        text = content.decode("utf-8")
        if name == "uv.lock":
            found = _uv(path, tomllib.loads(text))
        elif name.endswith(".json"):
            found = _npm(path, json.loads(text))
        else:
            found = _requirements(path, text)
        return list({package.key: package for package in found}.values())
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise SpecError(f"is no lock file that can be read: {str(error)[:200]}", where=path) from None


def _uv(path: str, data: Json) -> Iterator[Package]:
    for package in cast(list[Json], data.get("package", [])):
        source: Json = package["source"]
        if {"editable", "virtual", "directory", "path"} & source.keys():
            continue
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        times = [_time(file.get("upload-time")) for file in files]
        known = None if not times or None in times else max(time for time in times if time is not None)
        why = None if "registry" in source else "it is not from an index"
        why = why or (None if known else "the lock has no upload time of each file")
        yield Package(
            ecosystem="pypi", name=_normal(package["name"]), version=_text(package.get("version")), lock=path,
            published_at=known if "registry" in source else None, why=why,
        )  # fmt: skip


def _npm(path: str, data: Json) -> Iterator[Package]:
    packages: Json | None = data.get("packages")
    if packages is None:
        yield from _npm_tree(path, data.get("dependencies", {}))
        return
    for place, package in packages.items():
        if _NODE in place and not package.get("link"):
            yield _node(path, package.get("name") or place.rpartition(_NODE)[2], package)


def _npm_tree(path: str, dependencies: Json) -> Iterator[Package]:
    """Of lock files of npm before 7."""
    for name, package in dependencies.items():
        yield _node(path, name, package)
        yield from _npm_tree(path, package.get("dependencies", {}))


def _node(path: str, name: str, package: Json) -> Package:
    elsewhere = not str(package.get("resolved", "https:")).startswith(("https:", "http:"))
    why = "it is not from an index" if elsewhere else "the lock has no publish times"
    return Package(ecosystem="npm", name=str(name), version=_text(package.get("version")), lock=path, why=why)


def _requirements(path: str, text: str) -> Iterator[Package]:
    for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines():
        line = line.strip()
        if not line or line.startswith(("#", "-")):
            continue
        pinned = _PINNED.match(line)
        name = pinned or _NAME.match(line)
        if name is None:
            raise ValueError(f"{line[:80]!r} is no requirement")
        why = "the lock has no publish times" if pinned else "it is pinned to no version"
        yield Package(
            ecosystem="pypi", name=_normal(name[1] if pinned else name[0]), version=pinned[2] if pinned else None, lock=path, why=why
        )  # fmt: skip


def published_in_index(package: Package, answer: Json) -> datetime | None:
    """From what an index says of it as JSON, in the form of the ecosystem's own: of PyPI a version's files, of npm all versions' times."""
    if package.ecosystem == "npm":
        times = answer.get("time")
        return _time(cast(Json, times).get(package.version or "")) if isinstance(times, Mapping) else None
    files = answer.get("urls")
    each = (
        [
            _time(cast(Json, file).get("upload_time_iso_8601")) if isinstance(file, Mapping) else None
            for file in cast(list[Any], files)
        ]
        if isinstance(files, list)
        else []
    )
    return None if not each or None in each else max(time for time in each if time is not None)


def with_times(packages: Iterable[Package], times: Mapping[str, datetime], unknown: Mapping[str, str]) -> list[Package]:
    """times and unknown, by a package's key: when it was published, and why that could not be had."""
    found: list[Package] = []
    for package in packages:
        if package.published_at is None and package.key in times:
            package = replace(package, published_at=times[package.key], why=None)
        elif package.published_at is None and package.key in unknown:
            package = replace(package, why=f"{package.why}; {unknown[package.key]}")
        found.append(package)
    return found


def ages(packages: Iterable[Package], now: datetime, min_age_days: float) -> list[Aged]:
    """The youngest first, then the unknown, then the rest."""
    found: list[Aged] = []
    for package in packages:
        if package.published_at is None:
            found.append(Aged(package=package, age=Age.UNKNOWN, age_days=None))
            continue
        age = now - package.published_at
        verdict = Age.YOUNG if age < timedelta(days=min_age_days) else Age.OK
        found.append(Aged(package=package, age=verdict, age_days=age / timedelta(days=1)))
    order = (Age.YOUNG, Age.UNKNOWN, Age.OK)
    return sorted(found, key=lambda one: (order.index(one.age), one.age_days or 0.0, one.package.name))


def _time(value: Any) -> datetime | None:
    """TOML has times of its own; an answer of an index has text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
