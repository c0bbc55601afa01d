"""The host's egress process: one per state directory, detached, alive while a sandbox is registered.

    python -m eval_pipeline.gateway.process --state-dir DIR [--idle-s 60]

It is asked through a unix socket (mode 0600): one JSON line each way. Registrations are files, so that the next process listens
again for every sandbox that still lives. It leaves by itself after `idle-s` without a sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from eval_pipeline.errors import EvalsError, SandboxError, SpecError
from eval_pipeline.gateway import evidence
from eval_pipeline.gateway.addresses import Endpoint, parse_endpoint
from eval_pipeline.gateway.evidence import EgressEvent, EvidenceLog, Verdict
from eval_pipeline.gateway.listener import PORT, ListenerMaker
from eval_pipeline.gateway.model_log import MODELS
from eval_pipeline.gateway.paths import Paths, check_name
from eval_pipeline.gateway.proxy import Policy, Proxy, Room
from eval_pipeline.gateway.sparing import Sparing
from eval_pipeline.vault.held import HeldRedactor, log_redacted
from eval_pipeline.vault.values import Values

STAND_IN: Endpoint = ("model-stand-in", 80)
_BEAT_S = 1.0
_LOCK_TIMEOUT_S = 15
_RESOLVERS = 32  # names are resolved in threads: a slow one must not keep the others waiting
_DESCRIPTORS_A_CONNECTION = 3  # two, and a share of what sandboxes and the control socket need
_log = logging.getLogger("gateway")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """netns: the inode of the sandbox's network namespace; with it a pid can't be mistaken for a later process."""

    name: str
    pid: int
    netns: int
    endpoints: tuple[str, ...]
    local: tuple[str, ...]


@dataclass
class _Served:
    registration: Registration
    proxy: Proxy
    pidfd: int


class GatewayProcess:
    def __init__(self, paths: Paths, idle_s: float, maker: ListenerMaker, redactor: HeldRedactor) -> None:
        self._paths = paths
        self._idle_s = idle_s
        self._maker = maker
        self._redactor = redactor
        self._served: dict[str, _Served] = {}
        self._room = Room(_raised_descriptors() // _DESCRIPTORS_A_CONNECTION)
        self._changing = asyncio.Lock()
        self._stand_in: Any = None
        self._models: Any = None
        self._end = asyncio.Event()
        self._why = "stop"

    async def run(self) -> None:
        """Serve until told to stop or idle."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS))
        evidence.mark_start(self._paths.folder)
        evidence.purge(self._paths.folder)
        await self._listen_again()
        self._paths.socket.unlink(missing_ok=True)
        with self._paths.short() as folder:
            server = await asyncio.start_unix_server(self._answer, f"{folder}/{self._paths.socket.name}")
        self._paths.socket.chmod(0o600)
        beating = loop.create_task(self._beat())
        _log.info("serving %s", self._paths.folder)
        await self._end.wait()
        server.close()
        beating.cancel()
        self._paths.socket.unlink(missing_ok=True)
        for name in list(self._served):
            await self._drop(name, forget=False)
        for server in filter(None, (self._models, self._stand_in)):
            await server.close()
        evidence.mark(self._paths.folder, self._why)

    async def _beat(self) -> None:
        """The heartbeat, and the watch over idleness."""
        loop = asyncio.get_running_loop()
        busy = loop.time()
        while True:
            evidence.beat(self._paths.folder)
            for served in self._served.values():
                served.proxy.save()
            if self._served:
                busy = loop.time()
            elif loop.time() - busy >= self._idle_s:
                _log.info("no sandbox was registered for %g s: leaving", self._idle_s)
                self._why = "idle"
                self._end.set()
            await asyncio.sleep(min(_BEAT_S, self._idle_s))

    async def _listen_again(self) -> None:
        for path in sorted(self._paths.registry.glob("*.json")):
            saved: dict[str, Any] = json.loads(path.read_text())
            saved |= {"endpoints": tuple(saved["endpoints"]), "local": tuple(saved["local"])}
            registration = Registration(**saved)
            try:
                await self._admit(registration)
            except (SandboxError, OSError) as error:
                _log.info("forgetting %s: %s", registration.name, error)
                path.unlink(missing_ok=True)
                if _lives(registration):
                    self._write_down(registration, str(error))

    def _log_of(self, name: str) -> EvidenceLog:
        return EvidenceLog(self._paths.evidence_of(name), self._redactor)

    def _write_down(self, registration: Registration, error: str) -> None:
        """Somebody inside took the proxy's place while it was away: nothing gets out of there, and it is told."""
        taken = EgressEvent(at=datetime.now(UTC), verdict=Verdict.DENIED, host="127.0.0.1", port=PORT, error=error)
        self._log_of(registration.name).append(taken)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await self._do(json.loads(await reader.readline()))
        except (EvalsError, OSError) as error:
            reply = {"error": str(error)}
        try:
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except OSError as error:
            _log.info("a client left before its answer: %s", error)
        finally:
            writer.close()

    async def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["verb"]:
            case "admit":
                name, pid = check_name(request["name"]), int(request["pid"])
                netns = _network_of(pid)
                lists = {key: tuple(map(str, request[key])) for key in ("endpoints", "local")}
                await self._admit(Registration(name=name, pid=pid, netns=netns, **lists))
            case "release":
                await self._drop(check_name(request["name"]), forget=True)
            case "stop":
                self._end.set()
            case "ping":
                pass
            case verb:
                raise SpecError(f"the gateway knows no {verb!r}")
        return {"pid": os.getpid(), "sandboxes": sorted(self._served)}

    async def _admit(self, registration: Registration) -> None:
        async with self._changing:
            current = self._served.get(registration.name)
            if current is not None and current.registration == registration:
                return
            await self._drop_now(registration.name, forget=False)
            policy = self._policy(registration)
            pidfd = os.pidfd_open(registration.pid)
            try:
                # the helper compares the inode once more after the pidfd holds the process
                listener = await asyncio.to_thread(self._maker.listen, registration.pid, registration.netns)
            except SandboxError:
                os.close(pidfd)
                raise
            proxy = Proxy(listener, policy, self._log_of(registration.name), self._room)
            proxy.start()
            self._served[registration.name] = _Served(registration, proxy, pidfd)
            asyncio.get_running_loop().add_reader(pidfd, self._ended, registration.name)
            _save(self._paths.registration_of(registration.name), registration)

    def _policy(self, registration: Registration) -> Policy:
        allowed = frozenset(map(parse_endpoint, registration.endpoints))
        served: dict[Endpoint, Endpoint] = {}
        if STAND_IN in allowed:
            served[STAND_IN] = self._stand_in_endpoint()
        if MODELS in allowed:
            served[MODELS] = self._models_endpoint()
        return Policy(allowed=allowed, local=frozenset(map(parse_endpoint, registration.local)), served=served)

    def _stand_in_endpoint(self) -> Endpoint:
        if self._stand_in is None:
            from eval_pipeline.gateway.stand_in_server import StandInServer  # half a second of imports, for those who ask

            self._stand_in = StandInServer()
        return self._stand_in.endpoint

    def _models_endpoint(self) -> Endpoint:
        if self._models is None:
            from eval_pipeline.gateway.model_server import ModelServer

            values = Values(self._paths.folder.parent)
            self._models = ModelServer(self._paths, values, self._stand_in_endpoint, redactor=self._redactor)
        return self._models.endpoint

    def _ended(self, name: str) -> None:
        """The sandbox's first process is gone, whoever ended it."""
        asyncio.get_running_loop().remove_reader(self._served[name].pidfd)
        self._dropping = asyncio.get_running_loop().create_task(self._drop(name, forget=True))

    async def _drop(self, name: str, *, forget: bool) -> None:
        async with self._changing:
            await self._drop_now(name, forget=forget)

    async def _drop_now(self, name: str, *, forget: bool) -> None:
        if forget:
            self._paths.registration_of(name).unlink(missing_ok=True)
            self._paths.model_access_of(name).unlink(missing_ok=True)
            if self._models is not None:
                self._models.forget(name)
        served = self._served.pop(name, None)
        if served is not None:
            asyncio.get_running_loop().remove_reader(served.pidfd)
            os.close(served.pidfd)
            await served.proxy.close()


def _network_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116
    except FileNotFoundError:
        raise SandboxError(f"no process {pid}: the sandbox ended before it could be admitted") from None


def _lives(registration: Registration) -> bool:
    try:
        return _network_of(registration.pid) == registration.netns
    except SandboxError:
        return False


def _raised_descriptors() -> int:
    """As many as we may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _save(path: Path, registration: Registration) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(registration)))
    partial.rename(path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The egress process of a state directory.")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--idle-s", type=float, default=60.0)
    options = parser.parse_args(argv)
    log_redacted(options.state_dir, "%(asctime)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Sparing())
    paths = Paths.of(options.state_dir)
    maker = ListenerMaker()  # before the lock: it must not hold it, and before any thread
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signal.alarm(_LOCK_TIMEOUT_S)  # one that is leaving is waited for; behind one that stays we die
    flock(lock, LOCK_EX)
    signal.alarm(0)
    with suppress(KeyboardInterrupt):
        redactor = HeldRedactor(Values(options.state_dir), lowered=True)
        asyncio.run(GatewayProcess(paths, options.idle_s, maker, redactor).run())
    maker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
