"""A real HTTP server that speaks AWS, and an environment that leads boto3 to it and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def aws_server() -> Generator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def own_environment(monkeypatch: pytest.MonkeyPatch, none: Path, region: str = "us-east-1") -> None:
    """Away from this machine's own configuration. none: where no file is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(none))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
