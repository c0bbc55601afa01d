from __future__ import annotations

import io
import logging

from eval_pipeline.gateway.sparing import Sparing


def test_a_flood_is_cut_and_told_of_in_the_next_minute() -> None:
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.addFilter(Sparing(most=3))
    for second in (0, 1, 2, 3, 59, 60, 61, 130):
        record = logging.LogRecord("x", logging.INFO, __file__, 1, "at %d", (second,), None)
        record.created = 1_000_000_020 + second
        handler.handle(record)
    assert sink.getvalue().splitlines() == ["at 0", "at 1", "at 2", "2 more records were left out; at 60", "at 61", "at 130"]
