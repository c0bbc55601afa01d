"""Every way out over a network that an agent could try, and a run of all of them in one sandbox with a gateway."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from support.gateways import gateway_site, run

from eval_pipeline.gateway.evidence import EgressEvent, Verdict

PRELUDE = r"""
import ctypes, errno, json, os, re, socket, ssl, subprocess, sys, threading

def said(attempt):
    try:
        return str(attempt())
    except ssl.SSLError as error:
        return f"SSLError {error.reason}"
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)

def tcp(host, port, family=socket.AF_INET):
    with socket.socket(family) as s:
        s.settimeout(3)
        s.connect((host, port))
        return "CONNECTED"

def udp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        return s.sendto(b"x" * 30, (host, port))

def made(family, kind, protocol=0):
    with socket.socket(family, kind, protocol):
        return "MADE"

def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        return "CONNECTED"

def bound(address):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(address)
        s.listen()
        return "LISTENING"

def proxy(data):
    with socket.create_connection(("127.0.0.1", 3128), timeout=15) as s:
        s.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        answer = b""
        while b"\r\n\r\n" not in answer and (got := s.recv(65536)):
            answer += got
        return answer.split(b"\r\n")[0].decode()

def get(url, host=None, more=""):
    name = host if host is not None else re.sub("^http://([^/]*@)?", "", url).split("/")[0]
    return proxy(f"GET {url} HTTP/1.1\r\nHost: {name}\r\n{more}\r\n")

def connect(target):
    return proxy(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")

def tls(target, name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    s = socket.create_connection(("127.0.0.1", 3128), timeout=15)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    assert b" 200 " in s.recv(4096)
    with context.wrap_socket(s, server_hostname=name):
        return "CONNECTED"

def curl(*words):
    done = subprocess.run(["curl", "-sS", "-m", "10", "--noproxy", "", *words], capture_output=True, text=True)
    return f"{done.returncode} {done.stdout} {done.stderr}".strip()

def unshared():
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")
    return "UNSHARED"
"""


@dataclass(frozen=True)
class Attempt:
    """code: Python inside the sandbox, with {port}, an allowed server's, {other}, one that isn't allowed, and others.

    inside: what comes of it there. told: the host and the reason in the evidence; None: it never reaches the proxy.
    """

    what: str
    code: str
    inside: str
    told: tuple[str | None, str] | None = None


LISTED = "not in the egress list"
NONE = "no proxy request"
PAST_THE_PROXY = [
    Attempt("IPv4 address, TCP", "tcp('192.0.2.1', 443)", "ENETUNREACH"),
    Attempt("IPv6 address, TCP", "tcp('2001:db8::1', 443, socket.AF_INET6)", "ENETUNREACH|EADDRNOTAVAIL"),
    Attempt("metadata address", "tcp('169.254.169.254', 80)", "ENETUNREACH"),
    Attempt("DNS over UDP, 53", "udp('192.0.2.53', 53)", "ENETUNREACH"),
    Attempt("DNS over UDP and IPv6", "udp('2001:db8::53', 53, socket.AF_INET6)", "ENETUNREACH|EADDRNOTAVAIL"),
    Attempt("DNS over TCP, 53", "tcp('192.0.2.53', 53)", "ENETUNREACH"),
    Attempt("DNS over TLS, 853", "tcp('192.0.2.53', 853)", "ENETUNREACH"),
    Attempt("QUIC, UDP 443", "udp('192.0.2.1', 443)", "ENETUNREACH"),
    Attempt("name resolution", "socket.getaddrinfo('example.com', 443)", "gaierror"),
    Attempt("multicast", "udp('224.0.0.251', 5353)", "ENETUNREACH"),
    Attempt("this machine's loopback, the allowed server", "tcp('127.0.0.1', {port})", "ECONNREFUSED"),
    Attempt("the same by IPv6", "tcp('::1', {port}, socket.AF_INET6)", "ECONNREFUSED|EADDRNOTAVAIL"),
    Attempt("the proxy's port by IPv6", "tcp('::1', 3128, socket.AF_INET6)", "ECONNREFUSED|EADDRNOTAVAIL"),
    Attempt("another sandbox's server", "tcp('127.0.0.1', 4545)", "ECONNREFUSED"),
    Attempt("a Unix socket of this machine, by its path", "unix({unix!r})", "ENOENT"),
    Attempt("an abstract Unix socket of this machine", "unix('\\0' + {abstract!r})", "ECONNREFUSED"),
    Attempt("an abstract Unix socket of another sandbox", "unix('\\0neighbour')", "ECONNREFUSED"),
    Attempt("the gateway's control socket", "unix({control!r})", "ENOENT"),
    Attempt("Docker's socket", "unix('/var/run/docker.sock')", "ENOENT"),
    Attempt("D-Bus", "unix('/run/dbus/system_bus_socket')", "ENOENT"),
    Attempt("vsock", "made(40, socket.SOCK_STREAM)", "EAFNOSUPPORT|EPERM|EACCES"),
    Attempt("netlink", "made(16, socket.SOCK_RAW)", "EAFNOSUPPORT|EPERM|EACCES"),
    Attempt("packet socket", "made(17, socket.SOCK_RAW)", "EAFNOSUPPORT|EPERM|EACCES"),
    Attempt("raw ICMP", "made(socket.AF_INET, socket.SOCK_RAW, 1)", "EPERM|EACCES"),
    Attempt("ping socket", "made(socket.AF_INET, socket.SOCK_DGRAM, 1)", "EPERM|EACCES"),
    Attempt("crypto socket", "made(38, socket.SOCK_SEQPACKET)", "EAFNOSUPPORT|EPERM|EACCES"),
    Attempt("Bluetooth", "made(31, socket.SOCK_RAW)", "EAFNOSUPPORT|EPERM|EACCES"),
    Attempt("a network namespace of its own", "unshared()", "EPERM"),
    Attempt("taking the proxy's address", "bound(('127.0.0.1', 3128))", "EADDRINUSE"),
    Attempt("taking the proxy's port on all addresses", "bound(('0.0.0.0', 3128))", "EADDRINUSE"),
]
THROUGH_THE_PROXY = [
    Attempt("CONNECT to another host", "connect('evil.test:443')", " 403 ", ("evil.test", LISTED)),
    Attempt("DNS over HTTPS at another host", "connect('dns.evil.test:443')", " 403 ", ("dns.evil.test", LISTED)),
    Attempt("a subdomain", "connect('sub.localhost:{port}')", " 403 ", ("sub.localhost", LISTED)),
    Attempt("a longer name", "connect('localhost.evil.test:{port}')", " 403 ", ("localhost.evil.test", LISTED)),
    Attempt("another port of the allowed host", "connect('localhost:{other}')", " 403 ", ("localhost", LISTED)),
    Attempt("port 22 of the allowed host", "connect('localhost:22')", " 403 ", ("localhost", LISTED)),
    Attempt("port 0", "connect('localhost:0')", " 400 ", (None, NONE)),
    Attempt("no port", "connect('localhost')", " 400 ", (None, NONE)),
    Attempt("IPv4 literal of the allowed server", "connect('127.0.0.1:{port}')", " 403 ", ("127.0.0.1", LISTED)),
    Attempt("decimal address", "connect('2130706433:{port}')", " 403 ", ("2130706433", LISTED)),
    Attempt("octal address", "connect('0177.0.0.1:{port}')", " 403 ", ("0177.0.0.1", LISTED)),
    Attempt("hexadecimal address", "connect('0x7f000001:{port}')", " 403 ", ("0x7f000001", LISTED)),
    Attempt("short address", "connect('127.1:{port}')", " 403 ", ("127.1", LISTED)),
    Attempt("IPv6 literal", "connect('[::1]:{port}')", " 403 ", ("::1", LISTED)),
    Attempt("IPv4 mapped into IPv6", "connect('[::ffff:127.0.0.1]:{port}')", " 403 ", ("::ffff:127.0.0.1", LISTED)),
    Attempt("metadata address through the proxy", "get('http://169.254.169.254/latest/')", " 403 ", ("169.254.169.254", LISTED)),
    Attempt(
        "a listed name with a private address", "connect('localhost:{undeclared}')", " 403 ", ("localhost", "private address")
    ),
    Attempt("a listed private address", "connect('127.0.0.1:{undeclared}')", " 403 ", ("127.0.0.1", "private address")),
    Attempt("plain HTTP to the host of a TLS endpoint", "get('http://localhost/')", " 403 ", ("localhost", LISTED)),
    Attempt("plain HTTP to a TLS endpoint", "get('http://localhost:443/')", " 403 ", ("localhost", "plain HTTP")),
    Attempt("TLS to a host listed for plain HTTP", "connect('plain.test:443')", " 403 ", ("plain.test", LISTED)),
    Attempt("https:// as an absolute address", "get('https://localhost:{port}/')", " 400 ", (None, NONE)),
    Attempt("ftp:// as an absolute address", "get('ftp://localhost:{port}/')", " 400 ", (None, NONE)),
    Attempt(
        "another host, Host of the allowed one",
        "get('http://evil.test/', 'localhost:{port}')",
        " 400 ",
        ("evil.test", "Host header"),
    ),
    Attempt(
        "the allowed host, Host of another one",
        "get('http://localhost:{port}/', 'evil.test')",
        " 400 ",
        ("localhost", "Host header"),
    ),
    Attempt(
        "two Host headers",
        "get('http://localhost:{port}/', 'localhost:{port}', 'Host: evil.test\\r\\n')",
        " 400 ",
        (None, NONE),
    ),
    Attempt(
        "TLS for another name in an allowed tunnel",
        "tls('localhost:{port}', 'evil.test')",
        "SSLError|ECONNRESET|EOF",
        ("localhost", "TLS for evil.test"),
    ),
    Attempt("user in the address", "get('http://localhost:{port}@evil.test/', 'evil.test')", " 400 ", (None, NONE)),
    Attempt("user in the address of the allowed host", "get('http://a:b@localhost:{port}/')", " 400 ", (None, NONE)),
    Attempt("user in CONNECT", "connect('localhost:{port}@evil.test:443')", " 400 | 403 ", (None, NONE)),
    Attempt("two trailing dots", "connect('localhost..:{port}')", " 403 ", ("localhost.", LISTED)),
    Attempt("a name that is not ASCII", "connect('localho\\u017ft:{port}'.encode().decode('latin-1'))", " 400 ", (None, NONE)),
    Attempt("punycode of a lookalike", "connect('xn--localhst-v0a:{port}')", " 403 ", ("xn--localhst-v0a", LISTED)),
    Attempt("percent in the host", "get('http://localhos%74:{port}/')", " 400 | 403 ", ("localhos%74", LISTED)),
    Attempt("line break in the host", "connect('localhost:{port}%0d%0aHost:evil.test')", " 400 ", (None, NONE)),
    Attempt("NUL in the host", "connect('localhost\\0.evil.test:{port}')", " 400 ", (None, NONE)),
    Attempt(
        "head without an end", "proxy('GET http://localhost:{port}/ HTTP/1.1\\r\\nX: ' + 'x' * 40000)", " 431 ", (None, NONE)
    ),
    Attempt(
        "Content-Length and Transfer-Encoding",
        "get('http://localhost:{port}/', None, 'Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n')",
        " 400 ",
        (None, "length of the body"),
    ),
    Attempt(
        "two Content-Lengths",
        "get('http://localhost:{port}/', None, 'Content-Length: 4\\r\\nContent-Length: 5\\r\\n')",
        " 400 ",
        (None, NONE),
    ),
    Attempt(
        "an unknown Transfer-Encoding",
        "get('http://localhost:{port}/', None, 'Transfer-Encoding: xchunked\\r\\n')",
        " 501 | 400 ",
        (None, NONE),
    ),
    Attempt(
        "a folded header",
        "get('http://localhost:{port}/', None, 'X: a\\r\\n Host: evil.test\\r\\nX y: z\\r\\n')",
        " 400 ",
        (None, NONE),
    ),
    Attempt(
        "a second request behind the first",
        "proxy('GET http://localhost:{port}/ HTTP/1.1\\r\\nHost: localhost:{port}\\r\\n\\r\\nGET http://evil.test/ HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n')",
        " 200 ",
        ("localhost", "a second request"),
    ),
    Attempt(
        "WebSocket at another host",
        "get('http://evil.test/chat', None, 'Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n')",
        " 403 ",
        ("evil.test", LISTED),
    ),
    Attempt("HTTP/2 without asking", "proxy('PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')", " 400 ", (None, NONE)),
    Attempt("SOCKS 5", "proxy(b'\\x05\\x01\\x00\\r\\n\\r\\n')", " 400 ", (None, NONE)),
    Attempt(
        "a redirect to another host",
        "curl('-L', 'http://localhost:{port}/redirect')",
        "evil.test:80 is not in",
        ("evil.test", LISTED),
    ),
    Attempt(
        "a redirect to the metadata address",
        "curl('-L', 'http://localhost:{port}/metadata')",
        "is not in",
        ("169.254.169.254", LISTED),
    ),
    Attempt("the proxy's own port through the proxy", "connect('localhost:3128')", " 403 ", ("localhost", LISTED)),
]
ALLOWED = [
    Attempt("the allowed endpoint, plain", "curl('http://localhost:{port}/a')", "^0 served"),
    Attempt("the allowed endpoint, tunnelled", "curl('-p', 'http://localhost:{port}/a')", "^0 served"),
    Attempt("upper case", "get('http://LOCALHOST:{port}/a')", " 200 "),
    Attempt("a trailing dot", "get('http://localhost.:{port}/a')", " 200 "),
]


@dataclass(frozen=True)
class Tried:
    """found: attempt -> what came of it inside. denied: what the proxy recorded. The rest: what the servers outside saw."""

    found: dict[str, str]
    denied: list[EgressEvent]
    n_denied: int
    allowed_saw: list[str]
    other_saw: list[str]


class _Origin(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.seen.append(f"{self.path} {self.headers['Host']}")
        places = {"/redirect": "http://evil.test/", "/metadata": "http://169.254.169.254/"}
        self.send_response(302 if self.path in places else 200)
        if self.path in places:
            self.send_header("Location", places[self.path])
        self.end_headers()
        self.wfile.write(b"served")

    def log_message(self, format: str, *args: object) -> None:
        """The tests' output stays clean."""


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Origin)
        self.seen: list[str] = []
        self.thread = Thread(target=self.serve_forever)
        self.thread.start()

    def __exit__(self, *details: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


async def try_all(state_dir: Path) -> Tried:
    with _Server() as allowed, _Server() as other, socket.socket(socket.AF_UNIX) as path, socket.socket(socket.AF_UNIX) as name:
        path.bind(str(state_dir / "s"))
        path.listen()
        name.bind(f"\0{state_dir.name}")
        name.listen()
        port, undeclared = allowed.server_address[1], other.server_address[1]
        async with gateway_site(state_dir, [f"localhost:{port}"]) as site:
            listed = [f"localhost:{port}", "localhost:443", "plain.test:80", f"localhost:{undeclared}", f"127.0.0.1:{undeclared}"]
            sandbox, neighbour = await site.sandbox(*listed), await site.sandbox()
            server = "import socket, time; a = socket.create_server(('127.0.0.1', 4545)); b = socket.socket(socket.AF_UNIX); "
            server += "b.bind('\\0neighbour'); b.listen(); time.sleep(300)"
            await neighbour.start("server", ["/usr/bin/python3", "-c", server], env={}, workdir="/")
            words = {"port": port, "undeclared": undeclared, "other": 9, "unix": str(state_dir / "s")}
            words |= {"abstract": state_dir.name, "control": str(site.gateway.paths.socket)}
            every = [*PAST_THE_PROXY, *THROUGH_THE_PROXY, *ALLOWED]
            code, stdout, stderr = await run(sandbox, "/usr/bin/python3", "-c", program(every, words))
            assert code == 0, stderr
            events = site.gateway.evidence(sandbox.name)
            n_denied = site.gateway.counts(sandbox.name)[Verdict.DENIED]
    assert len({one.what for one in every}) == len(every)
    found = dict(zip([one.what for one in every], json.loads(stdout), strict=True))
    return Tried(found, [event for event in events if event.verdict is Verdict.DENIED], n_denied, allowed.seen, other.seen)


def program(every: Sequence[Attempt], words: Mapping[str, object]) -> str:
    """Python that prints a JSON list: how each of them ended."""
    return PRELUDE + "print(json.dumps([" + ", ".join(f"said(lambda: {_filled(one.code, words)})" for one in every) + "]))"


def _filled(code: str, words: Mapping[str, object]) -> str:
    return re.sub(r"\{(\w+)(!r)?\}", lambda match: repr(words[match[1]]) if match[2] else str(words[match[1]]), code)
