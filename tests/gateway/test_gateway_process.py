"""The gateway as sandboxes meet it: real process, real namespaces, servers of our own to be reached."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.gateways import Site, gateway_site, run

from eval_pipeline.errors import IsolationUnavailable, SandboxError, SpecError
from eval_pipeline.gateway.client import ensure_gateway, stop
from eval_pipeline.gateway.evidence import Verdict
from eval_pipeline.sandbox.base import Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import Egress, LocalBackend

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.path} {self.headers['Host']} {self.headers['Proxy-Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The tests' output stays clean."""


@pytest.fixture
def origin() -> Generator[int]:
    """The port of an HTTP server on the host's loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
async def site(state_dir: Path, origin: int) -> AsyncGenerator[Site]:
    async with gateway_site(state_dir, [f"localhost:{origin}"]) as made:
        yield made


async def get(sandbox: Sandbox, url: str, *options: str) -> tuple[int | None, str, str]:
    return await run(sandbox, "curl", "-sS", "-m", "10", "--noproxy", "", *options, url)


async def recorded(site: Site, sandbox: Sandbox, count: int) -> list[tuple[str, str | None, int | None]]:
    async with asyncio.timeout(10):
        while len(events := site.gateway.evidence(sandbox.name)) < count:
            await asyncio.sleep(0.01)
    return [(event.verdict, event.host, event.port) for event in events]


async def test_an_allowed_endpoint_is_reached_both_ways(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"LOCALHOST.:{origin}")
    secret = ("-H", "Proxy-Authorization: Basic abc")
    assert (await get(sandbox, f"http://localhost:{origin}/a?b=c", *secret))[:2] == (0, f"/a?b=c localhost:{origin} None")
    assert (await get(sandbox, f"http://localhost:{origin}/t", "-p"))[:2] == (0, f"/t localhost:{origin} None")
    assert await recorded(site, sandbox, 2) == [("allowed", "localhost", origin)] * 2
    events = site.gateway.evidence(sandbox.name)
    assert all(event.bytes_up > 50 and event.bytes_down > 50 and event.error is None for event in events)
    assert all(abs((datetime.now(UTC) - event.at).total_seconds()) < 60 for event in events)


async def test_everything_else_is_denied_and_said(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"localhost:{origin}")
    tries = [("evil.test", 443), ("localhost", origin + 1), ("127.0.0.1", origin), ("sub.localhost", origin), ("192.0.2.1", 80)]
    for host, port in tries:
        code, stdout, stderr = await get(sandbox, f"http://{host}:{port}/", "-p")
        assert (code, stdout) == (56, ""), stderr
        assert "403" in stderr
    assert await recorded(site, sandbox, len(tries)) == [("denied", *endpoint) for endpoint in tries]
    code, stdout, _ = await get(sandbox, "http://evil.test/")
    assert (code, stdout) == (0, "egress proxy: evil.test:80 is not in the egress list\n")


async def test_a_second_request_on_a_connection_can_not_pass_unread(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"localhost:{origin}")
    head = f"GET http://localhost:{origin}/one HTTP/1.1\\r\\nHost: localhost:{origin}\\r\\nConnection: keep-alive\\r\\n\\r\\n"
    second = "GET http://evil.test/two HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n"
    code, stdout, stderr = await run(
        sandbox, "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/3128; printf '{head}{second}' >&3; cat <&3"
    )
    assert code == 0, stderr
    assert f"/one localhost:{origin}" in stdout
    assert "/two" not in stdout


async def test_private_addresses_are_refused_unless_declared(site: Site, state_dir: Path, origin: int) -> None:
    undeclared = ensure_gateway(state_dir)
    backend = LocalBackend("a", state_dir, Egress(undeclared.admit, undeclared.release))
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", egress=[f"localhost:{origin}", f"[::1]:{origin}"])
    sandbox = await backend.get_or_create(spec)
    for host in ("localhost", "[::1]"):
        code, stdout, stderr = await get(sandbox, f"http://{host}:{origin}/")
        assert code == 0, stderr
        assert "private address" in stdout
    assert [verdict for verdict, _, _ in await recorded(site, sandbox, 2)] == ["denied", "denied"]


async def test_a_failed_dial_is_evidence(site: Site, state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gateway = ensure_gateway(state_dir, local=[f"localhost:{port}"])
    backend = LocalBackend("a", state_dir, Egress(gateway.admit, gateway.release))
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", egress=[f"localhost:{port}", "nowhere.invalid:443"])
    sandbox = await backend.get_or_create(spec)
    await get(sandbox, f"http://localhost:{port}/")
    await get(sandbox, "https://nowhere.invalid/")
    assert [(v, h) for v, h, _ in await recorded(site, sandbox, 2)] == [
        ("dial_failed", "localhost"),
        ("dial_failed", "nowhere.invalid"),
    ]
    refused, unknown = site.gateway.evidence(sandbox.name)
    assert refused.error is not None and "dialling" in refused.error
    assert unknown.error is not None and "resolving failed" in unknown.error


async def test_nonsense_and_floods_are_ended(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"localhost:{origin}")
    talk = "exec 3<>/dev/tcp/127.0.0.1/3128; {} >&3; head -n 1 <&3"
    _, stdout, _ = await run(sandbox, "bash", "-c", talk.format("printf 'hello\\r\\n\\r\\n'"))
    assert stdout.startswith("HTTP/1.1 400")
    _, stdout, _ = await run(sandbox, "bash", "-c", talk.format("head -c 40000 /dev/zero | tr '\\0' x"))
    assert stdout.startswith("HTTP/1.1 431")
    assert (await get(sandbox, f"http://localhost:{origin}/still"))[0] == 0


async def test_half_closing_keeps_the_answer(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(20)

        def answer_after_the_end() -> None:
            connection, _ = server.accept()
            with connection:
                asked = b""
                while data := connection.recv(4096):
                    asked += data
                connection.sendall(b"got %d" % len(asked))

        thread = Thread(target=answer_after_the_end)
        thread.start()
        gateway = ensure_gateway(site.state_dir, local=[f"localhost:{port}"])
        backend = LocalBackend("a", site.state_dir, Egress(gateway.admit, gateway.release))
        sandbox = await backend.get_or_create(
            SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", egress=[f"localhost:{port}"])
        )
        code = """import socket
s = socket.create_connection(("127.0.0.1", 3128)); s.sendall(b"CONNECT localhost:PORT HTTP/1.0\\r\\n\\r\\n")
assert b"200" in s.recv(4096); s.sendall(b"x" * 1000); s.shutdown(socket.SHUT_WR); print(s.makefile().read())""".replace(
            "PORT", str(port)
        )
        code_, stdout, stderr = await run(sandbox, "/usr/bin/python3", "-c", code)
        thread.join()
    assert (code_, stdout) == (0, "got 1000\n"), stderr


async def test_the_stand_in_answers_under_its_name(site: Site) -> None:
    sandbox = await site.sandbox("model-stand-in:80")
    _, stdout, _ = await get(sandbox, "http://model-stand-in/v1/models")
    assert json.loads(stdout)["object"] == "list"
    body = json.dumps({"model": "stand-in", "messages": [{"role": "user", "content": "Which port?"}]})
    _, stdout, stderr = await get(sandbox, "http://model-stand-in/v1/chat/completions", "-d", body)
    reply = json.loads(stdout)
    assert reply["choices"][0]["message"]["role"] == "assistant", stderr
    assert reply["usage"]["prompt_tokens"] > 0
    _, stdout, _ = await get(sandbox, "http://model-stand-in/v1/chat/completions", "-d", "no json", "-w", "%{http_code}")
    assert stdout.endswith("400")


async def test_a_killed_gateway_is_replaced_and_listens_again(site: Site, origin: int) -> None:
    first, second = await site.sandbox(f"localhost:{origin}"), await site.sandbox(f"localhost:{origin}")
    began = datetime.now(UTC)
    before = site.gateway.pid()
    os.kill(before, signal.SIGKILL)
    while site.gateway.paths.running():
        await asyncio.sleep(0.01)
    assert (await get(first, f"http://localhost:{origin}/"))[0] == 7
    down = site.gateway.outages(began)
    assert [outage.end for outage in down] == [None]
    ensure_gateway(site.state_dir)
    assert site.gateway.pid() != before
    for sandbox in (first, second):
        assert (await get(sandbox, f"http://localhost:{origin}/back"))[0] == 0
    (outage,) = site.gateway.outages(began)
    assert outage.end is not None
    assert outage.start < outage.end
    assert outage.overlaps(began, datetime.now(UTC))
    assert site.gateway.outages(datetime.now(UTC)) == []


async def test_egress_survives_the_engine(site: Site, origin: int) -> None:
    name = f"e-{secrets.token_hex(12)}"
    engine = f"""
import asyncio, sys, time
from pathlib import Path
from eval_pipeline.gateway.client import ensure_gateway
from eval_pipeline.sandbox.base import SandboxSpec
from eval_pipeline.sandbox.local.backend import Egress, LocalBackend
state = Path({str(site.state_dir)!r})
gateway = ensure_gateway(state, local=["localhost:{origin}"])
backend = LocalBackend("a", state, Egress(gateway.admit, gateway.release))
asyncio.run(backend.get_or_create(SandboxSpec(name={name!r}, installation="a", egress=["localhost:{origin}"])))
print("up", flush=True)
time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", engine], cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
    sandbox = await site.backend.find(name)
    assert sandbox is not None
    assert (await get(sandbox, f"http://localhost:{origin}/alone"))[:2] == (0, f"/alone localhost:{origin} None")


async def test_release_closes_everything_and_evidence_stays(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"localhost:{origin}")
    assert (await get(sandbox, f"http://localhost:{origin}/"))[0] == 0
    await site.gateway.release(sandbox.name)
    await site.gateway.release(sandbox.name)
    assert (await get(sandbox, f"http://localhost:{origin}/"))[0] == 7
    assert await recorded(site, sandbox, 1) == [(Verdict.ALLOWED, "localhost", origin)]
    assert list(site.gateway.paths.registry.iterdir()) == []
    await sandbox.terminate()
    assert len(site.gateway.evidence(sandbox.name)) == 1


async def test_an_ended_sandbox_is_forgotten_by_itself(site: Site, origin: int) -> None:
    sandbox = await site.sandbox(f"localhost:{origin}")
    assert len(list(site.gateway.paths.registry.iterdir())) == 1
    without_gateway = await LocalBackend("a", site.state_dir).find(sandbox.name)
    assert without_gateway is not None
    await without_gateway.terminate()
    async with asyncio.timeout(10):
        while list(site.gateway.paths.registry.iterdir()):
            await asyncio.sleep(0.01)


async def test_no_gateway_no_egress(state_dir: Path) -> None:
    backend = LocalBackend("a", state_dir)
    with pytest.raises(IsolationUnavailable, match=r"api\.example\.com:443"):
        await backend.get_or_create(SandboxSpec(name="e-1", installation="a", egress=["api.example.com:443"]))
    assert await backend.list() == []


async def test_errors_are_told(site: Site) -> None:
    with pytest.raises(SpecError, match="no endpoint"):
        await site.gateway.admit("e-1", os.getpid(), ["example.com"])
    with pytest.raises(SandboxError, match="no process"):
        await site.gateway.admit("e-1", 2**22 - 7, ["example.com:443"])


def test_one_process_whoever_asks(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 30) / "state"
    code = "from pathlib import Path; from eval_pipeline.gateway.client import ensure_gateway; import sys\n"
    code += "print(ensure_gateway(Path(sys.argv[1])).pid())"
    asking = [subprocess.Popen([sys.executable, "-c", code, str(deep)], cwd=REPOSITORY, stdout=subprocess.PIPE) for _ in range(4)]
    pids = {process.communicate()[0] for process in asking}
    stop(deep)
    assert len(pids) == 1


def test_it_leaves_when_idle(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 30) / "state"
    gateway = ensure_gateway(deep, idle_s=0.5)
    deadline = time.monotonic() + 20
    while gateway.paths.running():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "leaving" in gateway.paths.log.read_text()
    assert gateway.outages(datetime(2020, 1, 1, tzinfo=UTC)) == []
