"""Endpoints as people write them, and which addresses a sandbox may be led to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from eval_pipeline.errors import SpecError

Endpoint = tuple[str, int]
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Global by the registry's word or by an older Python's, and yet a platform's own (two of them tell a machine its credentials), a
# site's own, or an IPv4 address in a wrapping that some networks take off again
_OURS = [
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "::/96",
        "::ffff:0:0:0/96",
        "64:ff9b:1::/48",
        "5f00::/16",
        "fec0::/10",
    )
]


def parse_endpoint(text: str) -> Endpoint:
    """`host:port` in lower case without a trailing dot; IPv6 in brackets. Raises SpecError."""
    host, colon, port = text.rpartition(":")
    host = host.lower().removesuffix(".")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not host
        or not (port.isascii() and port.isdigit() and len(port) <= 5)
        or not 0 < int(port) < 65536
        or (":" in host and not bracketed)
    ):
        raise SpecError(f"{text!r} is no endpoint", hint="write host:port, for example api.example.com:443")
    return host[1:-1] if bracketed else host, int(port)


def is_public(address: str) -> bool:
    """False for private, loopback, link-local, shared, multicast and cloud platforms' own addresses, also when wrapped into an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _OURS)


async def resolve(endpoint: Endpoint) -> list[str]:
    """The addresses of the host, in the resolver's order. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
