"""Redacting by whatever the vault of a state directory holds at the time: for logs, and for what long-lived processes write."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from eval_pipeline.vault.redaction import Redactor
from eval_pipeline.vault.values import Values

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class HeldRedactor:
    """Called, it returns the redactor of the values that are held now. Thread-safe.

    lowered: the values are looked for in lower case, too: that is how names of hosts are written.
    """

    def __init__(self, values: Values, *, lowered: bool = False) -> None:
        self._values = values
        self._lowered = lowered
        self._known: tuple[frozenset[str], Redactor] = (frozenset(), Redactor({}))

    def __call__(self) -> Redactor:
        there = self._values.names()
        if there != self._known[0]:
            by_name: dict[str, set[str]] = {}
            for (name, _), value in self._values.held().items():
                by_name.setdefault(name, set()).update([value, value.lower()] if self._lowered else [value])
            self._known = there, Redactor(by_name)
        return self._known[1]


class _Formatter(logging.Formatter):
    def __init__(self, style: str, redactor: HeldRedactor) -> None:
        super().__init__(style)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return self._redactor().text(line)


def log_redacted(state_dir: Path, style: str = LOG_FORMAT) -> None:
    """This process's log goes to stderr, with tracebacks and what other libraries say, and without the values that are held."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(style, HeldRedactor(Values(state_dir))))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
