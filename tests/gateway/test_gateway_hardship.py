"""The gateway killed in the middle of connections, flooded, and shut out by the sandbox it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socketserver
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pytest
from support.gateways import Site, gateway_site, run

from eval_pipeline.gateway.client import Gateway, ensure_gateway
from eval_pipeline.gateway.evidence import Verdict
from eval_pipeline.gateway.proxy import MAX_CONNECTIONS
from eval_pipeline.sandbox.base import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Server(socketserver.ThreadingTCPServer):
    """Sends one line at once, and the end when it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Slow)
        self.going = Event()


class _Slow(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nbegun\n")
        if not self.server.going.wait(60):
            return
        self.wfile.write(b"done\n")


@pytest.fixture
def origin() -> Generator[_Server]:
    with _Server() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.going.set()
        server.shutdown()
        thread.join()


async def killed(site: Site) -> None:
    os.kill(site.gateway.pid(), signal.SIGKILL)
    async with asyncio.timeout(20):
        while site.gateway.paths.running():
            await asyncio.sleep(0.01)


async def written(path: str, sandbox: Sandbox) -> None:
    async with asyncio.timeout(30):
        while await sandbox.read(path, 100) is None:
            await asyncio.sleep(0.01)


async def test_a_kill_in_the_middle_of_connections(state_dir: Path, origin: _Server) -> None:
    port = origin.server_address[1]
    async with gateway_site(state_dir, [f"localhost:{port}"]) as site:
        sandbox = await site.sandbox(f"localhost:{port}")
        began = datetime.now(UTC)
        fetch = "for i in 1 2 3 4 5 6 7 8; do curl -sSN -m 50 --noproxy '' -p http://localhost:$0/ >$i 2>&1 & done; "
        fetch += "while [ $(cat 1 2 3 4 5 6 7 8 | grep -c begun) -lt 8 ]; do sleep 0.05; done; touch all; wait; "
        fetch += "cat 1 2 3 4 5 6 7 8 | grep -c done"
        running = asyncio.create_task(run(sandbox, "sh", "-c", fetch, str(port)))
        await written("/out/all", sandbox)
        await killed(site)
        code, stdout, _ = await running
        assert (code, stdout) == (1, "0\n")
        ensure_gateway(state_dir)
        (outage,) = site.gateway.outages(began)
        assert outage.end is not None and outage.overlaps(began, datetime.now(UTC))
        origin.going.set()
        code, stdout, stderr = await run(sandbox, "curl", "-sS", "--noproxy", "", "-p", f"http://localhost:{port}/")
        assert (code, stdout) == (0, "begun\ndone\n"), stderr


async def test_a_sandbox_that_takes_the_proxys_place_gets_nowhere_and_is_told_of(state_dir: Path, origin: _Server) -> None:
    squat = """import socket, time
while True:
    try:
        server = socket.create_server(("127.0.0.1", 3128))
        break
    except OSError:
        time.sleep(0.01)
open("/out/taken", "w").write("x")
time.sleep(100)"""
    async with gateway_site(state_dir) as site:
        sandbox, honest = await site.sandbox("a.test:443"), await site.sandbox("a.test:443")
        await sandbox.start("squat", ["/usr/bin/python3", "-c", squat], env={}, workdir="/")
        await killed(site)
        await written("/out/taken", sandbox)
        ensure_gateway(state_dir)
        (event,) = site.gateway.evidence(sandbox.name)
        assert (event.verdict, event.host, event.port) == (Verdict.DENIED, "127.0.0.1", 3128)
        assert "in use" in (event.error or "")
        assert "403" in (await run(honest, "curl", "-sS", "https://evil.test/"))[2]


async def test_many_half_sent_requests_hold_up_nobody_else(state_dir: Path, origin: _Server) -> None:
    origin.going.set()
    port = origin.server_address[1]
    loris = """import socket, time
held = []
for _ in range(2000):
    s = socket.socket(); s.setblocking(False)
    try:
        s.connect(("127.0.0.1", 3128))
    except BlockingIOError:
        pass
    held.append(s)
for s in held:
    try:
        s.send(b"GET http://local")
    except OSError:
        pass
open("/out/held", "w").write("x")
time.sleep(100)"""
    async with gateway_site(state_dir, [f"localhost:{port}"]) as site:
        rude, polite = await site.sandbox(f"localhost:{port}"), await site.sandbox(f"localhost:{port}")
        await rude.start("loris", ["/usr/bin/python3", "-c", loris], env={}, workdir="/")
        await written("/out/held", rude)
        for _ in range(5):
            code, stdout, stderr = await run(polite, "curl", "-sS", "-m", "5", "--noproxy", "", f"http://localhost:{port}/")
            assert (code, stdout) == (0, "begun\ndone\n"), stderr
        assert len(list(Path(f"/proc/{site.gateway.pid()}/fd").iterdir())) < MAX_CONNECTIONS + 100
        await rude.stop("loris")
        code, stdout, stderr = await run(rude, "curl", "-sS", "-m", "30", "--noproxy", "", f"http://localhost:{port}/")
        assert (code, stdout) == (0, "begun\ndone\n"), stderr
        await _counted(site.gateway, rude.name)
        assert site.gateway.counts(polite.name) == {Verdict.ALLOWED: 5}


async def _counted(gateway: Gateway, name: str) -> None:
    """Those that never said what they wanted are refused one after the other, and written down; some never got that far."""
    async with asyncio.timeout(60):
        while gateway.counts(name)[Verdict.DENIED] <= MAX_CONNECTIONS // 2:
            await asyncio.sleep(0.1)
