"""The ways over a network, as rows of the table; and where nothing hinders them, that each of them leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from escape.escape_table import PLATFORM, Row, Verdict
from support.egress_attempts import ALLOWED, PAST_THE_PROXY, THROUGH_THE_PROXY, program, try_all

# A network of its own, in which every address that is tried has somebody who listens
FREE = r"""
import json, os, socket, subprocess, sys
words = json.loads(sys.argv[1])
for address in ("192.0.2.1/32", "192.0.2.53/32", "169.254.169.254/32"):
    subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
for address in ("2001:db8::1/128", "2001:db8::53/128"):
    subprocess.run(["ip", "-6", "address", "add", address, "dev", "lo", "nodad"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up", "multicast", "on"], check=True)
subprocess.run(["ip", "route", "add", "224.0.0.0/4", "dev", "lo"], check=True)
kept = []
def tcp(host, port, family=socket.AF_INET):
    kept.append(socket.socket(family))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept[-1].bind((host, port))
    kept[-1].listen(50)
for host, ports in {"192.0.2.1": [443], "192.0.2.53": [53, 853], "169.254.169.254": [80], "127.0.0.1": [words["port"], 4545]}.items():
    for port in ports:
        tcp(host, port)
tcp("2001:db8::1", 443, socket.AF_INET6)
tcp("::1", words["port"], socket.AF_INET6)
tcp("::1", 3128, socket.AF_INET6)
with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
    file.write("0 0")
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
os.makedirs("/run/dbus")
for path in (words["unix"], words["control"], "/run/docker.sock", "/run/dbus/system_bus_socket", "\0" + words["abstract"], "\0neighbour"):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(path)
    kept[-1].listen(50)
with open(words["hosts"], "w") as file:
    file.write("127.0.0.1 localhost\n192.0.2.1 example.com\n")
subprocess.run(["mount", "--bind", words["hosts"], "/etc/hosts"], check=True)
sys.exit(subprocess.run([sys.executable, "-c", words["program"]]).returncode)
"""


def where_nothing_hinders(folder: Path) -> dict[str, str]:
    words: dict[str, object] = {"port": 8443, "undeclared": 1, "other": 9, "abstract": "the-machine's"}
    words |= {name: str(folder / f"free-{name}") for name in ("unix", "control", "hosts")}
    words["program"] = program(PAST_THE_PROXY, words)
    own = [
        "unshare",
        "--net",
        "--mount",
        "--propagation",
        "private",
        *([] if os.getuid() == 0 else ["--user", "--map-root-user"]),
    ]
    command = [*own, "/usr/bin/python3", "-c", FREE, json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(zip([one.what for one in PAST_THE_PROXY], json.loads(done.stdout), strict=True))


def ended_as(inside: str, said: str) -> bool:
    return re.fullmatch(inside, said) is not None


async def local_rows(folder: Path) -> list[Row]:
    tried = await try_all(folder)
    free = where_nothing_hinders(folder)
    served = all(re.search(one.inside, tried.found[one.what]) for one in ALLOWED)
    unheard = tried.other_saw == [] and not any("evil" in line for line in tried.allowed_saw)
    rows: list[Row] = []
    for one in PAST_THE_PROXY:
        said, control = tried.found[one.what], free[one.what]
        refused, works = ended_as(one.inside, said), not ended_as(one.inside, control)
        verdict = (Verdict.REFUSED if works else Verdict.NOT_SHOWN) if refused else Verdict.OUT
        rows.append(Row(one.what, "local", verdict, said, f"control: {control}"))
    for one, event in zip(THROUGH_THE_PROXY, tried.denied, strict=True):
        said = tried.found[one.what]
        refused = re.search(one.inside, said) is not None and unheard and served
        evidence = f"the proxy recorded {event.host}:{event.port} {event.error}; no server heard of it; control: {len(ALLOWED)} allowed ones get through"
        rows.append(Row(one.what, "local", Verdict.REFUSED if refused else Verdict.OUT, said, evidence))
    return rows


def modal_rows(asked: Mapping[str, object]) -> list[Row]:
    """asked: what the platform was asked to hold, of a sandbox without egress."""
    evidence = f"asked of it: network {asked['network']}, domains {asked['domains']}"
    return [Row(one.what, "modal", Verdict.NOT_SHOWN, PLATFORM, evidence) for one in [*PAST_THE_PROXY, *THROUGH_THE_PROXY]]
