"""A session for somebody who tries the desk out: prints its token."""

from __future__ import annotations

import sys

from matter_desk import postgres, sessions
from matter_desk.service import default_session


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: session USER", file=sys.stderr)
        return 2
    connection = postgres.connect()
    with postgres.transaction(connection) as cursor:
        matter = default_session(cursor).matter
    print(sessions.issue(sessions.Session(argv[0], matter), sessions.key()))
    return 0
