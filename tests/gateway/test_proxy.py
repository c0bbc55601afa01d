"""The proxy under what a real resolver or a patient attacker could do to it; in-process, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eval_pipeline.gateway.addresses import Endpoint
from eval_pipeline.gateway.evidence import MAX_EVENTS, EgressEvent, EvidenceLog, Verdict, read_counts, read_events
from eval_pipeline.gateway.proxy import REFUSAL_PAUSE_S, Policy, Proxy, Room
from eval_pipeline.gateway.request import Refused
from eval_pipeline.gateway.tunnel import Greeting
from eval_pipeline.vault.redaction import Redactor

pytestmark = pytest.mark.anyio
NAME = "name.test"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Names:
    """A resolver whose answers are given; each is given once, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, endpoint: Endpoint) -> list[str]:
        self.asked += 1
        return list(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


@asynccontextmanager
async def served(path: Path, names: Names, port: int, *, local: bool = False, room: int = 1000) -> AsyncGenerator[int]:
    """The port of a proxy that allows NAME at `port`."""
    listener = socket.create_server(("127.0.0.1", 0))
    allowed = frozenset({(NAME, port)})
    policy = Policy(allowed=allowed, local=allowed if local else frozenset())
    made = Proxy(listener, policy, EvidenceLog(path, lambda: Redactor({})), Room(room), names)
    made.start()
    try:
        yield listener.getsockname()[1]
    finally:
        await made.close()


async def ask(port: int, target: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    try:
        async with asyncio.timeout(20):
            return await reader.readuntil(b"\r\n")
    finally:
        writer.close()


PRIVATE = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fd00::1", "0.0.0.0"]


@pytest.mark.parametrize("address", PRIVATE)
@pytest.mark.parametrize("before", [[], ["1.1.1.1"]], ids=["alone", "behind a public one"])
async def test_a_name_that_leads_to_a_private_address_is_refused(tmp_path: Path, address: str, before: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        async with served(tmp_path / "e.jsonl", Names([*before, address]), port) as at:
            assert b" 403 " in await ask(at, f"{NAME}:{port}")
        with pytest.raises(BlockingIOError):
            server.accept()
    (event,) = read_events(tmp_path / "e.jsonl")
    assert (event.verdict, event.host, event.port) == (Verdict.DENIED, NAME, port)
    assert address in (event.error or "")


async def test_a_name_is_resolved_once_and_that_answer_is_dialled(tmp_path: Path) -> None:
    """Rebinding between the check and the connection would need a second question."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        names = Names(["127.0.0.1"], ["192.0.2.1"])
        async with served(tmp_path / "e.jsonl", names, port, local=True) as at:
            assert b" 200 " in await ask(at, f"{NAME}:{port}")
            assert names.asked == 1


async def test_a_full_process_is_the_platforms_fault(tmp_path: Path) -> None:
    async with served(tmp_path / "e.jsonl", Names(["127.0.0.1"]), 1, room=0) as at:
        assert b" 503 " in await ask(at, f"{NAME}:1")
    (event,) = read_events(tmp_path / "e.jsonl")
    assert event.verdict is Verdict.DIAL_FAILED


@pytest.mark.slow
async def test_a_flood_of_refusals_is_slowed_counted_and_bounded(tmp_path: Path) -> None:
    path, loop = tmp_path / "e.jsonl", asyncio.get_running_loop()
    async with served(path, Names(["127.0.0.1"]), 1, local=True) as at:
        for _ in range(MAX_EVENTS // 100):
            await asyncio.gather(*(ask(at, "evil.test:443") for _ in range(100)))
        size, begin = path.stat().st_size, loop.time()
        await asyncio.gather(*(ask(at, f"{'x' * 20000}.test:443") for _ in range(100)))
        assert loop.time() - begin > REFUSAL_PAUSE_S * 0.9
        assert b" 502 " in await ask(at, f"{NAME}:1")  # what else happens still has its line
    assert read_counts(path) == {Verdict.DENIED: MAX_EVENTS + 100, Verdict.DIAL_FAILED: 1}
    events = read_events(path)
    assert [event.verdict for event in events] == [Verdict.DENIED] * MAX_EVENTS + [Verdict.DIAL_FAILED]
    assert path.stat().st_size < size + 1000
    again = EvidenceLog(path, lambda: Redactor({}))  # the next process of the gateway goes on counting
    again.append(EgressEvent(at=events[0].at, verdict=Verdict.DENIED, host=None, port=None))
    again.save()
    assert read_counts(path)[Verdict.DENIED] == MAX_EVENTS + 101


async def test_a_line_is_short_whatever_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with served(path, Names(["127.0.0.1"]), 1) as at:
        await ask(at, f"{'x' * 20000}.test:443")
    assert path.stat().st_size < 1000


def hello(name: str | None) -> bytes:
    """The first flight of a real TLS client."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1", *(f"padding-{number}" for number in range(100))])
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.parametrize("name", [NAME, NAME.upper(), None])
@pytest.mark.parametrize("piece", [1, 100, 65536])
def test_a_greeting_for_the_tunnels_host_passes_whole(name: str | None, piece: int) -> None:
    sent, greeting = hello(name), Greeting((NAME, 443))
    decided = [greeting.decided(sent[start : start + piece]) for start in range(0, len(sent), piece)]
    assert decided == [False] * (len(decided) - 1) + [True]


@pytest.mark.parametrize("piece", [1, 65536])
def test_a_greeting_for_another_host_is_refused(piece: int) -> None:
    sent, greeting = hello("evil.test"), Greeting((NAME, 8443))
    with pytest.raises(Refused, match=r"TLS for evil\.test in a tunnel to name\.test:8443"):
        assert [greeting.decided(sent[start : start + piece]) for start in range(0, len(sent), piece)] == []


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x00", b"\x80\x2e\x01\x03\x01"])
def test_what_is_no_tls_passes_to_other_ports_only(sent: bytes) -> None:
    assert Greeting((NAME, 22)).decided(sent)
    with pytest.raises(Refused, match="no TLS"):
        Greeting((NAME, 443)).decided(sent)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc" + b"\0" * 16380])
def test_a_broken_greeting_is_refused(sent: bytes) -> None:
    with pytest.raises(Refused, match="can't be read"):
        assert Greeting((NAME, 443)).decided(sent) is None
