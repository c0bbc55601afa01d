"""How `evals up` sees that the server of its code is gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from eval_pipeline.cli.up import _serves_code  # pyright: ignore[reportPrivateUsage]


def test_it_is_seen_beside_processes_whose_names_are_no_text(tmp_path: Path) -> None:
    """As an agent in a sandbox may call itself."""
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.symlink_to("/bin/cat")
    server = ["/bin/sh", "-c", "read line", "api", "grpc", "--heartbeat"]
    with (
        subprocess.Popen([odd], stdin=subprocess.PIPE),
        subprocess.Popen(server, stdin=subprocess.PIPE, start_new_session=True) as started,
    ):
        assert _serves_code(started.pid)
        assert not _serves_code(os.getpid())
        started.communicate()
        assert not _serves_code(started.pid)
