"""A log that others can write into, and can't flood."""

from __future__ import annotations

import logging

RECORDS_A_MINUTE = 100


class Sparing(logging.Filter):
    """So many records a minute: what sandboxes make this process say must not fill the machine's disk. The next minute tells of the rest."""

    def __init__(self, most: int = RECORDS_A_MINUTE) -> None:
        super().__init__()
        self._most = most
        self._minute = self._n = 0

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(record.created // 60)
        if minute != self._minute:
            left_out = self._n - self._most
            self._minute, self._n = minute, 0
            if left_out > 0:
                record.msg = f"{left_out} more records were left out; {record.msg}"
        self._n += 1
        return self._n <= self._most
