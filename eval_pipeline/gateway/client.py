"""Asking the gateway of a state directory, and starting it when there is none."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from eval_pipeline.errors import SandboxError
from eval_pipeline.gateway.addresses import parse_endpoint
from eval_pipeline.gateway.evidence import EgressEvent, Outage, Verdict, read_counts, read_events, read_outages
from eval_pipeline.gateway.model_log import ModelLog
from eval_pipeline.gateway.paths import Paths

START_TIMEOUT_S = 20.0
_CALL_TIMEOUT_S = 30.0
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


@dataclass(frozen=True)
class Gateway:
    """`admit` and `release` start the process again when it is gone; evidence and outages are read from files.

    local: the endpoints whose hosts may have a private address, for every sandbox.
    """

    paths: Paths
    state_dir: Path
    local: tuple[str, ...]
    idle_s: float

    @classmethod
    def at(cls, state_dir: Path, *, local: Sequence[str] = (), idle_s: float = 60.0) -> Gateway:
        """Without starting anything: enough to read evidence and outages."""
        return cls(Paths.of(state_dir), state_dir.absolute(), tuple(local), idle_s)

    async def admit(self, name: str, child_pid: int, endpoints: Sequence[str], local: Sequence[str] = ()) -> None:
        """Listen in the sandbox of `child_pid` and let it reach exactly `endpoints`. Idempotent.

        Raises SpecError for what is no endpoint, SandboxError when the sandbox can't be entered.
        """
        for endpoint in (*endpoints, *local):
            parse_endpoint(endpoint)
        request = {"verb": "admit", "name": name, "pid": child_pid, "endpoints": list(endpoints)}
        request["local"] = [*self.local, *local]
        await asyncio.to_thread(self._call, request)

    async def release(self, name: str) -> None:
        """Close the sandbox's listener and connections. Idempotent; a gateway that is gone has nothing open."""
        registered = self.paths.registration_of(name)
        if registered.exists():
            await asyncio.to_thread(self._release, name, registered)

    def _release(self, name: str, registered: Path) -> None:
        if _ask(self.paths, {"verb": "release", "name": name}) is None:
            registered.unlink(missing_ok=True)
            self.paths.model_access_of(name).unlink(missing_ok=True)

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        reply = _ask(self.paths, request)
        if reply is None:
            _start(self.paths, self.state_dir, self.idle_s)
            reply = _ask(self.paths, request)
        if reply is None:
            raise SandboxError("the gateway left while it was asked", hint=f"its log: {self.paths.log}")
        if "error" in reply:
            raise SandboxError(reply["error"])
        return reply

    def model_log(self, name: str) -> ModelLog:
        """What the sandbox asked of models. Kept after `release`."""
        return ModelLog(self.paths.model_log_of(name))

    def pid(self) -> int:
        """Of the running process; started when there is none."""
        return int(self._call({"verb": "ping"})["pid"])

    def evidence(self, name: str) -> list[EgressEvent]:
        """The sandbox's connections that were refused or have ended, in that order; MAX_EVENTS of a verdict. Kept after `release`."""
        return read_events(self.paths.evidence_of(name))

    def counts(self, name: str) -> Counter[Verdict]:
        """How many connections the sandbox made, also of those above MAX_EVENTS (these up to a second late)."""
        return read_counts(self.paths.evidence_of(name))

    def outages(self, since: datetime) -> list[Outage]:
        """Every time that the process was away and that had not ended before `since`."""
        found = read_outages(self.paths.folder, self.paths.running())
        return [outage for outage in found if outage.end is None or outage.end >= since]


def ensure_gateway(state_dir: Path, *, local: Sequence[str] = (), idle_s: float = 60.0) -> Gateway:
    """The gateway of the state directory, running. Raises SpecError for what is no endpoint, SandboxError when it doesn't start."""
    for endpoint in local:
        parse_endpoint(endpoint)
    gateway = Gateway.at(state_dir, local=local, idle_s=idle_s)
    gateway.pid()
    return gateway


def stop(state_dir: Path) -> None:
    """End the gateway, if any; sandboxes lose their egress until the next one listens again."""
    paths = Paths.of(state_dir)
    if _ask(paths, {"verb": "stop"}) is None:
        return
    deadline = time.monotonic() + START_TIMEOUT_S
    while paths.running():
        if time.monotonic() > deadline:
            raise SandboxError(f"the gateway did not leave within {START_TIMEOUT_S:.0f} s", hint=f"its log: {paths.log}")
        time.sleep(0.01)


def _ask(paths: Paths, request: dict[str, Any]) -> dict[str, Any] | None:
    """The reply, or None when no process listens."""
    with socket.socket(socket.AF_UNIX) as client, paths.short() as folder:
        client.settimeout(_CALL_TIMEOUT_S)
        try:
            client.connect(f"{folder}/{paths.socket.name}")
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as stream:
                line = stream.readline()
        except (FileNotFoundError, ConnectionError):
            return None
        except TimeoutError:
            raise SandboxError(
                f"the gateway did not answer within {_CALL_TIMEOUT_S:.0f} s", hint=f"its log: {paths.log}"
            ) from None
    return json.loads(line) if line else None


def _start(paths: Paths, state_dir: Path, idle_s: float) -> None:
    lock = os.open(paths.folder / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock(lock, LOCK_EX)
        if _ask(paths, {"verb": "ping"}) is None:
            _spawn(paths, state_dir, idle_s)
            _await(paths)
    finally:
        os.close(lock)


def _spawn(paths: Paths, state_dir: Path, idle_s: float) -> None:
    """Through a shell that ends at once, so that the process is nobody's child; with none of our secrets."""
    env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    env["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # it imports what we import, wherever it starts
    command = [sys.executable, "-m", "eval_pipeline.gateway.process", "--state-dir", str(state_dir), "--idle-s", str(idle_s)]
    with paths.log.open("ab") as log:
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", *command],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def _await(paths: Paths) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while _ask(paths, {"verb": "ping"}) is None:
        if time.monotonic() > deadline:
            last = paths.log.read_bytes()[-500:].decode(errors="replace").strip()
            raise SandboxError(f"the gateway did not start within {START_TIMEOUT_S:.0f} s: {last}", hint=f"its log: {paths.log}")
        time.sleep(0.02)
