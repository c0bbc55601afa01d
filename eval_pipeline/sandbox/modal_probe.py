"""Tries whether an installation can work on Modal, each point by really doing it. It costs a few sandbox minutes at most."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import EvalsError, SandboxError
from eval_pipeline.sandbox.base import Address, Engine, Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.modal import ModalBackend
from eval_pipeline.sandbox.modal_calls import Throttled

ALLOWED, REFUSED = "example.com", "example.org"
_LIFETIME_S = 900
_COMMAND_TIMEOUT_S = 120.0
_AT_ONCE = 20

_INSIDE = """
fail() { echo "$1"; exit 1; }
[ "$(id -u)" = 1000 ] || fail "commands run as uid $(id -u)"
grep -q '^CapEff:.0*$' /proc/self/status || fail "commands have capabilities"
cat /world/probe.txt >/dev/null || fail "the world is not at /world"
(: >/world/x) 2>/dev/null && fail "the world can be written to"
(: >/run/evals/x) 2>/dev/null && fail "the runner's files can be written to"
(: >>/etc/ld.so.preload) 2>/dev/null && fail "the loader's configuration can be written to"
[ "$PROBE_SECRET" = "$1" ] || fail "the secret did not arrive"
: >/etc/own || fail "the root file system is not the user's"
command -v git >/dev/null || fail "the image has no git"
"""

_PORT = 8071
_ECHO = f"""
import socket
with socket.create_server(("127.0.0.1", {_PORT})) as server:
    open("/out/up", "w").write("x")
    while True:
        line, said = server.accept()[0], b""
        while chunk := line.recv(65536):
            said += chunk
        line.sendall(said); line.close()
"""

_EGRESS = f"""
look() {{ echo "$1: $(curl -sS -o /dev/null -m 10 -w '%{{http_code}}' "$2" 2>&1 | tail -n 1)"; }}
look "allowed name" https://{ALLOWED}/
look "other name" https://{REFUSED}/
look "allowed name, port 80" http://{ALLOWED}/
look "an address" https://1.1.1.1/
echo "another name resolves: $(getent hosts {REFUSED} >/dev/null && echo yes || echo no)"
"""


_WITH_ENGINE = b"""FROM debian:12
RUN [ -x /usr/sbin/dockerd ] && command -v busybox >/dev/null || { apt-get update -qq && \\
  apt-get install -y -qq --no-install-recommends docker.io iptables busybox-static; }
"""
_CONTAINERS = """
log=/run/evals/logs/engine.stderr n=0
until docker info >/dev/null 2>&1; do
  n=$((n + 1)); [ $n -lt 150 ] || { echo "no engine within 30 s:"; tail -n 5 $log; exit 1; }
  sleep 0.2
done
tar -cf - -C "$(dirname "$(command -v busybox)")" busybox | docker import - probe >/dev/null || exit 1
docker network create probe >/dev/null && docker run --rm --network probe probe /busybox true || exit 1
echo "storage $(docker info -f '{{.Driver}}'), cgroup v$(docker info -f '{{.CgroupVersion}}')"
grep -h 'no packet filter' $log || echo "packet filter works"
[ -c /dev/fuse ] && echo "FUSE is there" || echo "no /dev/fuse"
"""


@dataclass(frozen=True)
class Tried:
    what: str
    works: bool
    said: str
    remedy: str | None = None


Step = Callable[[ModalBackend, Path], Awaitable[str]]


async def probe(backend: ModalBackend, scratch: Path, steps: Mapping[str, Step]) -> list[Tried]:
    """In order; what follows a failure is not tried."""
    tried: list[Tried] = []
    for what, step in steps.items():
        try:
            tried.append(Tried(what, True, await step(backend, scratch)))
        except EvalsError as error:
            tried.append(Tried(what, False, str(error), error.hint))
            break
    return tried


def _spec(purpose: str, **more: object) -> SandboxSpec:
    options: dict[str, object] = {"lifetime_s": _LIFETIME_S, "tags": {"purpose": purpose}, **more}
    return SandboxSpec(name=f"probe-{secrets.token_hex(8)}", installation="doctor", **options)  # pyright: ignore[reportArgumentType]


async def _run(sandbox: Sandbox, script: str, *words: str, with_engine: bool = False) -> str:
    """What it printed. Raises SandboxError when it failed."""
    argv = ["sh", "-c", script, "sh", *words]
    await sandbox.start("probe", argv, env={}, workdir="/", with_secrets=True, with_engine=with_engine)
    async with asyncio.timeout(_COMMAND_TIMEOUT_S):
        while (state := await sandbox.state("probe")).phase is Phase.RUNNING:
            await asyncio.sleep(0.2)
    said = b"".join(await sandbox.logs("probe")).decode(errors="replace").strip()
    if state.exit_code != 0:
        raise SandboxError(f"in a sandbox: {said or state}")
    return said


async def token(backend: ModalBackend, _: Path) -> str:
    app = await backend.cloud.app()
    return f"known to Modal; app {backend.place} is {app.app_id}"


async def image(backend: ModalBackend, _: Path) -> str:
    began = time.monotonic()
    return f"{await backend.base_layer()}, built or found in {time.monotonic() - began:.1f} s"


async def secret_access(backend: ModalBackend, _: Path) -> str:
    return f"can be listed, {await backend.cloud.check_secrets()} there; those of an app on Modal are `APP-NAME-PHASE`; what none holds travels with its command"


async def round_trip(backend: ModalBackend, scratch: Path) -> str:
    world, word = _world(scratch), secrets.token_hex(8)
    began = time.monotonic()
    sandbox = await backend.get_or_create(_spec("probe", world=world, secrets={"PROBE_SECRET": word}))
    up_s = time.monotonic() - began
    try:
        await _run(sandbox, _INSIDE, word)
        await sandbox.write("/out/note", b"\0\xff")
        collected = await sandbox.collect(scratch / "probe.tar")
    finally:
        await sandbox.terminate()
    return f"runtime {backend.runtime}, world on its volume, up in {up_s:.1f} s, {collected.n_files} files collected, ended"


def _world(scratch: Path) -> Path:
    world = scratch / "probe-world"
    world.mkdir(parents=True, exist_ok=True)
    (world / "probe.txt").write_text("a world\n")
    return world


async def rates(backend: ModalBackend, _: Path) -> str:
    """A token may not be allowed to see them, and experiments run all the same."""
    try:
        found = await backend.cloud.billing_rates()
    except EvalsError as error:
        return f"not told ({error}); the public price stands in"
    named = ", ".join(f"{name} {usd:f}" for name, usd in sorted(found.items()) if name.endswith("_sandbox"))
    return f"US dollars an hour: {named}" if named else "none for sandboxes among those told; the public price stands in"


async def ports(backend: ModalBackend, _: Path) -> str:
    sandbox = await backend.get_or_create(_spec("probe"))
    try:
        await sandbox.start("echo", ["python3", "-c", _ECHO], env={}, workdir="/out")
        async with asyncio.timeout(_COMMAND_TIMEOUT_S), sandbox.forward(_PORT) as address:
            while not await sandbox.read("/out/up", 1):
                await asyncio.sleep(0.1)
            took_s = [await _echoed(address, secrets.token_bytes(size)) for size in (1, 1 << 22)]
    finally:
        await sandbox.terminate()
    return f"a byte there and back in {took_s[0] * 1000:.0f} ms, {1 << 22} bytes in {took_s[1]:.1f} s"


async def _echoed(address: Address, data: bytes) -> float:
    """Seconds until it was back. Raises SandboxError when something else came."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    writer.write_eof()
    back = await reader.read(-1)
    writer.close()
    if back != data:
        raise SandboxError(f"{len(data)} bytes were sent to a port of the sandbox, and {len(back)} came back")
    return time.monotonic() - began


async def snapshot(backend: ModalBackend, scratch: Path) -> str:
    key = f"probe-{secrets.token_hex(8)}"
    builder = await backend.get_or_create(_spec("build", world=_world(scratch)))
    try:
        await _run(builder, "echo kept >/app/kept")
        began = time.monotonic()
        ref = await backend.commit(builder, key)
        took_s = time.monotonic() - began
    finally:
        await builder.terminate()
    user = await backend.get_or_create(_spec("probe", layers=[ref]))
    try:
        said = await _run(user, "cat /app/kept; ls /world | wc -l")
    finally:
        await user.terminate()
        await backend.remove_layer(key)
    return f"sealed in {took_s:.1f} s; it kept {said.split()[0]!r} and {said.split()[-1]} files of the volume"


async def egress(backend: ModalBackend, _: Path) -> str:
    sandbox = await backend.get_or_create(_spec("probe", egress=[f"{ALLOWED}:443"]))
    try:
        return "; ".join((await _run(sandbox, _EGRESS)).splitlines())
    finally:
        await sandbox.terminate()


async def containers(backend: ModalBackend, _: Path) -> str:
    ref = await backend.base_layer(dockerfile=_WITH_ENGINE)
    began = time.monotonic()
    sandbox = await backend.get_or_create(_spec("probe", layers=[ref], engine=Engine.CACHED))
    try:
        said = await _run(sandbox, _CONTAINERS, with_engine=True)
    finally:
        await sandbox.terminate()
    return f"a container ran on its own network after {time.monotonic() - began:.1f} s; {'; '.join(said.splitlines())}"


async def rate(backend: ModalBackend, _: Path) -> str:
    """Without our own throttle, so that Modal's shows."""
    await backend.base_layer()
    began = time.monotonic()
    made = await asyncio.gather(*(backend.get_or_create(_spec("probe")) for _ in range(_AT_ONCE)), return_exceptions=True)
    took_s = time.monotonic() - began
    sandboxes = [one for one in made if not isinstance(one, BaseException)]
    await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))
    refused = sum(isinstance(one, Throttled) for one in made)
    for one in made:
        if isinstance(one, BaseException) and not isinstance(one, Throttled):
            raise one
    return f"{len(sandboxes)} sandboxes up in {took_s:.1f} s, {refused} refused"


ALWAYS: Mapping[str, Step] = {"token": token, "image": image, "rates": rates, "secrets": secret_access, "sandbox": round_trip}
ON_REQUEST: Mapping[str, Step] = {"snapshot": snapshot, "ports": ports, "egress": egress, "containers": containers, "rate": rate}
"""What only the real service can show."""
