"""The port to isolated machines. This docstring is the contract; every backend passes tests/contract/ unchanged.

A Sandbox serves one attempt (or builds one layer). Its name is `e-<24 hex>` and is derived from (installation, cell, attempt),
so asking twice gives the same machine: `get_or_create` adopts what exists under our installation and raises ForeignSandbox
for another's. Names are unique per host (local) or per app (modal).

Inside a sandbox:
  /world      the snapshot, read-only                  /run/evals  the runner's own files and `files`
  /out        $EVALS_OUTPUT, the only collected tree   layers      the root file system, copy-on-write
Everything runs as one unprivileged user with no capabilities and no route; HTTP_PROXY and HTTPS_PROXY lead to the allowlist
proxy when `egress` is not empty. Nothing written inside reaches a layer, the world, the host or another sandbox.

Commands: `start(id, argv)` is idempotent per id, also across orchestrators; it returns once the command is accepted.
`state(id)`: absent (never accepted), running, exited (with code; 128+n for signal n), lost (the sandbox is gone and no exit was
recorded). The exit code comes from the runner, never from the command's output. A command outlives the orchestrator.
`stop(id)` kills the command's process group; `terminate` kills the whole tree, verifies it, and is idempotent.

Limits: what a sandbox writes (layers' changes, /out, /tmp, logs) is capped in sum at disk_mib, its memory at memory_mib. At a cap a
write fails with ENOSPC, a process is killed, or the whole sandbox is ended; `limits_hit` tells, also of a lost one, until
`terminate`. A limit of the host or of a group above ours is none of these.

Ports: what listens on 127.0.0.1 inside is reachable from there alone. `forward` leads one such port to the caller's machine, for
people who look into a sandbox; SandboxError where there is no way in.

Isolation: `missing` names what of this does not hold here. Its level is full, degraded (a limit is missing), unsafe (a wall is
missing, by the user's permission) or none (no sandbox can be started).

Errors: SandboxLost when the sandbox is gone, SandboxError for anything else that is ours; both are infrastructure.
Paths are absolute inside the sandbox. Binary stays binary. `read` and `tail` never follow links and never block on a FIFO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

OUTPUT_DIR = "/out"
WORLD_DIR = "/world"
RUN_DIR = "/run/evals"
USER_NAMESPACE = "user namespace"
STATE_DIR = f"{OUTPUT_DIR}/state"
SKIPPED_NAME = "skipped.json"


def world_path(target: str) -> str | None:
    """The path in the snapshot that a link below /out/state stands for; None for a link that leads anywhere else."""
    path = target.removeprefix(f"{WORLD_DIR}/")
    plain = path != target and all(part not in ("", ".", "..") for part in path.split("/"))
    return path if plain else None


def isolation_level(missing: Mapping[str, str]) -> str:
    """The level of a backend that starts sandboxes: full, degraded or unsafe."""
    if USER_NAMESPACE in missing:
        return "unsafe"
    return "degraded" if missing else "full"


class Phase(StrEnum):
    ABSENT = "absent"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"


class Limit(StrEnum):
    """pids: a fork was refused, which ends nothing by itself. disk: it is full, or the sandbox was ended for what it wrote."""

    MEMORY = "memory"
    DISK = "disk"
    PIDS = "pids"


@dataclass(frozen=True)
class CommandState:
    """exit_code: None unless exited. elapsed_s: monotonic time from start to now or exit; None when absent or lost."""

    phase: Phase
    exit_code: int | None = None
    elapsed_s: float | None = None


@dataclass(frozen=True)
class Address:
    """Where a forwarded port is reached: on this machine's loopback, or at a tunnel's end."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Engine(StrEnum):
    """Of containers, in a sandbox with a kernel of its own. pulls: images from what egress allows. cached: those that a layer holds."""

    PULLS = "pulls"
    CACHED = "cached"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """cpu in cores; the rest in MiB."""

    cpu: float = 1.0
    memory_mib: int = 1024
    disk_mib: int = 1024


@dataclass(frozen=True)
class SyncedSecret:
    """A named secret at the platform that holds just `secrets`. keys: which it must have to be the one that is meant."""

    name: str
    version: str
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What to make. `layers`: refs, lowest first, as `commit` returned them. `world`: directory of the restored snapshot.

    files: read-only files by absolute path under /run/evals. secrets: environment that only commands started with
    `with_secrets=True` see; never in an argv, a tag, a log or the host's file system. egress: `host:port` endpoints.
    synced: where a platform holds the same secrets under a name; `secrets` are sent where it does not, or not any more.
    egress_local: those of `egress` that may have a private address; of any other one a private address is refused.
    engine: a container engine runs inside, and what it holds becomes part of a layer. A backend without one raises SpecError.
    lifetime_s: after which it is ended by itself, whoever is there to look after it; None: as late as the backend allows.
    """

    name: str
    installation: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    layers: Sequence[str] = ()
    world: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    synced: SyncedSecret | None = None
    egress: Sequence[str] = ()
    egress_local: Sequence[str] = ()
    resources: Resources = Resources()
    engine: Engine | None = None
    lifetime_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SandboxInfo:
    name: str
    installation: str
    tags: Mapping[str, str]
    alive: bool


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The output bundle's contents. `skipped`: path -> why it was left out (link, FIFO, device, too large, bad name).

    Paths are relative to /out; names that are not UTF-8 are kept through surrogateescape. n_files, size_bytes: regular files.
    """

    n_files: int
    size_bytes: int
    skipped: Mapping[str, str]


@dataclass(frozen=True)
class ContextFile:
    data: bytes
    executable: bool


@dataclass(frozen=True)
class Pulled:
    """An image as a registry has it: its tag or digest. ecr: in AWS' registry, with credentials that the installation holds."""

    tag: str
    ecr: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerContent:
    digest: str
    size_bytes: int


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...

    async def start(
        self,
        command_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str,
        with_secrets: bool = False,
        with_engine: bool = False,
    ) -> None:
        """with_engine: the command may use the container engine, and so is as good as root in its sandbox."""
        ...

    async def state(self, command_id: str) -> CommandState: ...

    async def stop(self, command_id: str) -> None: ...

    async def logs(self, command_id: str, max_bytes: int = 65536) -> tuple[bytes, bytes]:
        """The last `max_bytes` of stdout and of stderr."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Under /out only."""
        ...

    async def add_file(self, path: str, data: bytes) -> None:
        """A further one of the spec's `files`: read-only, under /run/evals, whole from the first moment. Again: it is replaced.

        Raises SandboxLost, and SpecError for a path that no such file can have.
        """
        ...

    async def read(self, path: str, max_bytes: int) -> bytes | None:
        """A regular file under /out; None when there is none. Raises SandboxError when it is larger than `max_bytes`."""
        ...

    async def tail(self, path: str, offset: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` from `offset` of a regular file under /out; empty when there is none or nothing new."""
        ...

    async def collect(self, dest: Path) -> Collected:
        """Write /out and the commands' logs as one plain tar to `dest`, nothing of it durable: `out/...`, `logs/<command>.stdout|stderr`.

        Regular files and directories; below `out/state/` also symbolic links that `world_path` takes, as symbolic links and never
        followed. What is skipped stands in the bundle too: `skipped.json`, path -> why, left out when nothing was skipped.
        """
        ...

    def forward(self, port: int, at: int | None = None) -> AbstractAsyncContextManager[Address]:
        """127.0.0.1:`port` inside, reachable at the address while the context lasts.

        at: the port to take here; None: any free one. Raises SpecError when it is taken, SandboxError when there is no way in.
        """
        ...

    async def limits_hit(self) -> Sequence[Limit]:
        """The sandbox's own limits that it ran into; empty when none, or when this can't be known here."""
        ...

    async def alive(self) -> bool: ...

    async def terminate(self) -> None: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    async def get_or_create(self, spec: SandboxSpec) -> Sandbox: ...

    async def find(self, name: str) -> Sandbox | None:
        """A sandbox of any installation on this host or app, alive or with its evidence still there; else None."""
        ...

    async def list(self) -> list[SandboxInfo]: ...

    async def commit(self, sandbox: Sandbox, key: str) -> str:
        """End the sandbox, seal what it wrote as the layer `key`, and return its ref. Idempotent per key."""
        ...

    async def base_layer(
        self,
        *,
        requirements: bytes | None = None,
        dockerfile: bytes | None = None,
        context: Mapping[str, ContextFile] | None = None,
        pulled: Pulled | None = None,
    ) -> str:
        """The ref of the lowest layer: with the wheels of a hashed pip lock, made from a Dockerfile, or pulled from a registry.

        context: the files that the Dockerfile copies, by path. Idempotent per content.

        Raises BuildError when it can't be made, SpecError when this backend makes none of that kind.
        """
        ...

    def layer(self, key: str) -> str | None:
        """The ref of a sealed layer, or None."""
        ...

    def layer_content(self, key: str) -> LayerContent | None:
        """What was sealed; None when there is no such layer, or when this can't be known here."""
        ...

    def layer_expires_at(self, key: str) -> datetime | None:
        """When the platform ends a layer that was sealed through this object; None when it keeps it."""
        ...

    async def remove_layer(self, key: str, ref: str | None = None) -> None:
        """Idempotent. For a layer that no sandbox stands on. ref: what it stood for, where only its record knew."""
        ...

    async def publish(self, ref: str, name: str) -> str | None:
        """Give an image a name by which people find it there, and return it; None where there are no such names."""
        ...

    def contents(self) -> Mapping[str, float]:
        """Layers kept here, whole and half ones: key -> seconds since it was sealed. Base layers are not among them.

        Empty where layers can't be listed.
        """
        ...

    @property
    def place(self) -> str:
        """Where this backend's refs mean something: they are of no use at another place."""
        ...

    @property
    def poll_s(self) -> float:
        """The longest pause between two looks at a command that this backend bears from all who look through it now."""
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """Guarantees of this contract that do not hold here -> why."""
        ...

    async def aclose(self) -> None: ...
