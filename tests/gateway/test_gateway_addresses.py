from __future__ import annotations

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.addresses import is_public, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("api.example.com:443", ("api.example.com", 443)),
        ("API.Example.com.:1", ("api.example.com", 1)),
        ("[2001:DB8::1]:65535", ("2001:db8::1", 65535)),
    ],
)
def test_endpoints(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:8٠", "::1:80", "a:b:80", ".:80"]
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(SpecError):
        parse_endpoint(text)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *(
            "255.255.255.255",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1%eth0",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
        ),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe"),
        *("::7f00:1", "::ffff:0:7f00:1", "64:ff9b:1::a9fe:a9fe", "fec0::1", "5f00::1", "fd00:ec2::254"),
        *("168.63.129.16", "192.0.0.192", "192.88.99.1", "100.100.100.200"),
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)
