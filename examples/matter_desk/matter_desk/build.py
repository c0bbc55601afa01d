"""What every matter shares: an empty database cluster, and byte code."""

from __future__ import annotations

from matter_desk import cluster, compiled


def main() -> int:
    cluster.make_cluster()
    return compiled.main()
