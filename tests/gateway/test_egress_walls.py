"""Every way out that an agent could try, really tried in a sandbox: what refuses it, and whether it is told.

`make escape` prints the table. A connection past the proxy fails in the sandbox's own kernel space, where nobody is told of it; what
reaches the proxy always has a line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.egress_attempts import ALLOWED, PAST_THE_PROXY, THROUGH_THE_PROXY, try_all

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


async def test_every_other_way_is_refused_and_what_reaches_the_proxy_is_told(state_dir: Path) -> None:
    tried = await try_all(state_dir)
    every = [*PAST_THE_PROXY, *THROUGH_THE_PROXY, *ALLOWED]
    assert {one.what: tried.found[one.what] for one in every if not re.search(one.inside, tried.found[one.what])} == {}
    assert len(tried.denied) == tried.n_denied == len(THROUGH_THE_PROXY)
    for attempt, event in zip(THROUGH_THE_PROXY, tried.denied, strict=True):
        assert attempt.told is not None
        assert event.host == attempt.told[0], (attempt, event)
        assert attempt.told[1] in (event.error or ""), (attempt, event)
    assert tried.other_saw == []
    assert all("evil" not in line for line in tried.allowed_saw)
