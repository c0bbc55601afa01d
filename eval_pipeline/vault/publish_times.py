"""When packages were published, asked of indexes that speak JSON; what was told once is not asked again, as it never changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from eval_pipeline.vault.supply_chain import Ecosystem, Package, published_in_index

_AT_ONCE = 8
_TIMEOUT_S = 10.0
_MAX_BYTES = 64 << 20


class PublishTimes:
    """indexes: by ecosystem an address with {name} and {version} in it. file: where the answers are kept."""

    def __init__(self, indexes: Mapping[Ecosystem, str], file: Path) -> None:
        self._indexes = indexes
        self._file = file
        self._away: dict[str, str] = {}

    def find(self, packages: Iterable[Package]) -> tuple[dict[str, datetime], dict[str, str]]:
        """By key: when it was published, and why that could not be had. Of packages whose lock does not say it."""
        wanted = {package.key: package for package in packages if package.published_at is None and package.version is not None}
        known = {key: time for key, time in self._kept().items() if key in wanted}
        unknown: dict[str, str] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = [package for key, package in wanted.items() if key not in known]
            for package, told in zip(asked, pool.map(self._ask, asked), strict=True):
                if isinstance(told, datetime):
                    known[package.key] = told
                else:
                    unknown[package.key] = told
        self._keep(known)
        return known, unknown

    def _ask(self, package: Package) -> datetime | str:
        address = self._indexes.get(package.ecosystem)
        if address is None:
            return f"no index of {package.ecosystem} is set"
        if (away := self._away.get(package.ecosystem)) is not None:
            return away
        url = address.format(name=quote(package.name, safe="@"), version=quote(package.version or "", safe=""))
        try:
            with urlopen(url, timeout=_TIMEOUT_S) as answer:
                found = published_in_index(package, json.loads(answer.read(_MAX_BYTES)))
        except HTTPError as error:
            return f"the index of {package.ecosystem} answers {error.code}"
        except (URLError, OSError) as error:
            return self._away.setdefault(
                package.ecosystem, f"the index of {package.ecosystem} is not reachable: {getattr(error, 'reason', error)}"
            )
        except (ValueError, AttributeError, RecursionError):
            return f"the index of {package.ecosystem} answers no JSON of its form"
        return found or f"the index of {package.ecosystem} has no publish time of it"

    def _kept(self) -> dict[str, datetime]:
        try:
            stored = json.loads(self._file.read_text())
            return {key: datetime.fromisoformat(time) for key, time in stored.items()}
        except (FileNotFoundError, ValueError):  # absent, or half a file of somebody who was killed: it is asked again
            return {}

    def _keep(self, known: Mapping[str, datetime]) -> None:
        before = self._kept()
        if known.keys() <= before.keys() or not self._file.parent.is_dir():  # who only reads makes no state directory
            return
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps({key: time.isoformat() for key, time in {**before, **known}.items()}, sort_keys=True))
        partial.rename(self._file)
