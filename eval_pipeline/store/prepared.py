"""Statements that Postgres parses and plans once a connection: for the small ones that every cell sends, that was most of the work."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


class Step:
    """types: of the parameters, written `:name`, that are not `text`, as Postgres calls them. What goes to a `jsonb` is encoded here; None is NULL."""

    def __init__(self, text: str, **types: str) -> None:
        names = list(dict.fromkeys(_PARAMETER.findall(text)))
        self._json = {name for name, kind in types.items() if kind == "jsonb"}
        self._name = f"step_{hashlib.sha256(repr((text, types)).encode()).hexdigest()[:16]}"
        numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        kinds = f" ({', '.join(types.get(name, 'text') for name in names)})" if names else ""
        self._names = names
        self._prepare = f"prepare {self._name}{kinds} as {numbered}".replace("%", "%%")

    def run(self, connection: sa.Connection, values: Mapping[str, object]) -> Any:
        """The first value of the first row; None when there is no row."""
        return run_together(connection, [(self, values)])

    def prepare(self, connection: sa.Connection) -> None:
        prepared: set[str] = connection.info.setdefault("prepared", set())
        if self._name not in prepared:
            connection.exec_driver_sql(self._prepare)
            prepared.add(self._name)

    def executed(self, values: Mapping[str, object], mark: str) -> tuple[str, dict[str, object]]:
        """As text, and the values by their names there. mark: another one for each that stands in one text."""
        named = {name: f"{mark}{name}" for name in self._names}
        given = f" ({', '.join(f'%({name})s' for name in named.values())})" if named else ""
        encoded = {called: _encoded(values[name]) if name in self._json else values[name] for name, called in named.items()}
        return f"execute {self._name}{given}", encoded


def run_together(connection: sa.Connection, steps: Sequence[tuple[Step, Mapping[str, object]]]) -> Any:
    """In one message to the server, each seeing what those before it did: what the last one returns, as of `Step.run`."""
    for step, _ in steps:
        step.prepare(connection)
    executed = [step.executed(values, f"p{n}_") for n, (step, values) in enumerate(steps)]
    given = {name: value for _, values in executed for name, value in values.items()}
    return connection.exec_driver_sql("; ".join(text for text, _ in executed), given).scalar()


def _encoded(value: object) -> str | None:
    return None if value is None else json.dumps(value)
