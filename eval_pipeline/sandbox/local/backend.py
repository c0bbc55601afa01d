"""The local backend: one bwrap process tree a sandbox, its state in directories, so that any orchestrator can go on with it."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from functools import cached_property
from pathlib import Path
from typing import Any

from eval_pipeline.errors import ForeignSandbox, IsolationUnavailable, SandboxError, SpecError
from eval_pipeline.sandbox.base import RUN_DIR, ContextFile, LayerContent, Pulled, Sandbox, SandboxInfo, SandboxSpec
from eval_pipeline.sandbox.local import disk, guarantees, hostlayer, launch, layers, limits, preflight, script, smallfiles
from eval_pipeline.sandbox.local.places import Places, own_directory, prepare
from eval_pipeline.sandbox.local.safefs import remove_tree
from eval_pipeline.sandbox.local.sandbox import LocalSandbox

BUILD_TAG = ("purpose", "build")
LIFETIME_S = 8 * 24 * 3600.0
"""Of a sandbox whose spec names none: a day longer than anybody keeps a world open."""


@dataclass(frozen=True)
class Egress:
    """The allowlist proxy, as the backend needs it. admit(name, pid of PID 1, endpoints, those with private addresses) is idempotent."""

    admit: Callable[[str, int, Sequence[str], Sequence[str]], Awaitable[None]]
    release: Callable[[str], Awaitable[None]]


class LocalBackend:
    """Sandboxes on this Linux machine. `egress` None: a spec that asks for egress is refused.

    unsafe: where no user namespace can be made, root may start sandboxes without one. Whether that is so is tried once, here.

    A sandbox tagged `purpose: build` keeps what it writes on the layers' file system; only such a one can be committed.
    """

    name = "local"

    def __init__(self, installation: str, state_dir: Path, egress: Egress | None = None, *, unsafe: bool = False) -> None:
        self._installation = installation
        self.unsafe = unsafe
        self._egress = egress
        self._places = prepare(state_dir, rooted=unsafe and os.getuid() == 0 and not preflight.can_isolate())
        self._groups = limits.find_groups()

    @property
    def controllers(self) -> frozenset[str]:
        """The control groups that limit sandboxes here: of pids, memory and cpu."""
        return frozenset(self._groups.parents)

    @cached_property
    def limits(self) -> frozenset[str]:
        """Those of pids, memory, cpu and disk that the kernel holds for a cell's sandbox."""
        return self.controllers | frozenset(["disk"] if disk.can_cap(self._places) else [])

    @cached_property
    def guarantees(self) -> Sequence[guarantees.Guarantee]:
        return guarantees.here(self.limits, namespaces=preflight.remedy("") if self._places.rooted else None)

    @property
    def user(self) -> str:
        """The uid and the only gid of every process in a sandbox, as they are seen there."""
        return f"{self._places.inside.uid} {self._places.inside.gid}"

    @property
    def poll_s(self) -> float:
        return 1.0

    @property
    def missing(self) -> Mapping[str, str]:
        return guarantees.missing(self.guarantees)

    async def get_or_create(self, spec: SandboxSpec) -> Sandbox:
        script.check_spec(spec)
        if spec.engine is not None:
            raise SpecError(
                f"{spec.name} asks for a container engine, and a sandbox on this machine shares its kernel and holds none"
            )
        if spec.egress and self._egress is None:
            raise IsolationUnavailable(
                f"{spec.name} asks for egress to {', '.join(spec.egress)}, and no proxy was given to the local backend",
                hint="start the backend with a gateway, or take `egress` out",
            )
        sandbox, made = await asyncio.to_thread(self._get_or_create, spec)
        try:
            await self._admit(spec, sandbox)
        except Exception:
            if made:  # nobody knows of it yet; one that was there may have an agent at work
                await sandbox.terminate()
            raise
        return sandbox

    async def _admit(self, spec: SandboxSpec, sandbox: LocalSandbox) -> None:
        if not spec.egress or self._egress is None:
            return
        inmate = launch.inmate(sandbox.home)
        if inmate is not None and await sandbox.alive():
            await self._egress.admit(spec.name, inmate.pid, spec.egress, spec.egress_local)

    def _get_or_create(self, spec: SandboxSpec) -> tuple[LocalSandbox, bool]:
        """And whether it was made now."""
        parent = self._places.builds if BUILD_TAG in spec.tags.items() else self._places.scratch
        home = self._home(spec.name) or parent / spec.name
        with _Creating(home):
            meta = read_meta(home)
            if meta is None:
                _write_meta(home, spec, self._places.host)
            elif meta["installation"] != spec.installation:
                raise ForeignSandbox(
                    f"the sandbox {spec.name} belongs to the installation {meta['installation']}, not to {spec.installation}",
                    hint="two ledgers share one state directory: give each its own",
                )
            made = not launch.was_ready(home)
            if made:  # its creator died halfway, or nobody has begun
                launch.kill(home)
                self._build(home, spec)
            else:
                self._limit(home)
        return self._sandbox(home, dict(spec.tags), spec.resources.disk_mib), made

    def _build(self, home: Path, spec: SandboxSpec) -> None:
        limits.remove(limits.recorded(home / "groups"))
        _clear(home)
        in_memory = self._places.scratch_is_memory and home.parent == self._places.scratch
        disk.make(home / "disk", self._places, spec.resources.disk_mib, in_memory=in_memory)
        _furnish(home, spec.files, self._places)
        limits.make(self._groups, self._group(spec.name), spec.resources, in_memory, home / "groups")
        plan = launch.Plan(
            layers=tuple(Path(ref) for ref in spec.layers),
            world=spec.world,
            proxied=bool(spec.egress),
            lifetime_s=spec.lifetime_s or LIFETIME_S,
        )
        launch.spawn(
            home, self._places, plan, limits.ulimits(self._groups, spec.resources) + script.secrets_message(spec.secrets)
        )
        self._limit(home)

    def _limit(self, home: Path) -> None:
        found = launch.inmate(home)
        if found is not None and launch.alive(home):
            limits.join(home / "groups", found.pid)

    def _group(self, name: str) -> str:
        return f"evals-{self._places.tag}-{name}"

    def _home(self, name: str) -> Path | None:
        return next((folder / name for folder in self._roots() if (folder / name / "meta.json").exists()), None)

    def _roots(self) -> builtins.list[Path]:
        return list(dict.fromkeys((self._places.scratch, self._places.builds)))

    def _sandbox(self, home: Path, tags: Mapping[str, str], disk_mib: int) -> LocalSandbox:
        release = self._egress.release if self._egress is not None else None
        return LocalSandbox(home, tags=tags, places=self._places, disk_mib=disk_mib, release=release)

    async def find(self, name: str) -> Sandbox | None:
        if not script.NAME.fullmatch(name) or (home := self._home(name)) is None:
            return None
        meta = read_meta(home)
        return None if meta is None else self._sandbox(home, meta["tags"], meta["disk_mib"])

    async def list(self) -> builtins.list[SandboxInfo]:
        return await asyncio.to_thread(self._list)

    def _list(self) -> builtins.list[SandboxInfo]:
        found = [(home, read_meta(home)) for root in self._roots() for home in _entries(root)]
        return [
            SandboxInfo(name=home.name, installation=meta["installation"], tags=meta["tags"], alive=launch.alive(home))
            for home, meta in found
            if meta is not None
        ]

    async def commit(self, sandbox: Sandbox, key: str) -> str:
        sealed = self.layer(key)
        if sealed is None:
            sealed = await asyncio.to_thread(self._commit, sandbox, key)
        await sandbox.terminate()
        return sealed

    def _commit(self, sandbox: Sandbox, key: str) -> str:
        home = self._places.builds / sandbox.name
        meta = read_meta(home)
        if meta is None or BUILD_TAG not in meta["tags"].items():
            raise SandboxError(
                f"{sandbox.name} is no build sandbox, so {key} can't be sealed from it", hint="tag it purpose: build"
            )
        launch.kill(home)
        return str(layers.seal(self._places.layers, key, home / "disk" / "u"))

    def layer(self, key: str) -> str | None:
        path = layers.find(self._places.layers, key)
        return None if path is None else str(path)

    def layer_content(self, key: str) -> LayerContent | None:
        return layers.content(self._places.layers, key)

    def layer_expires_at(self, key: str) -> None:
        """Never by itself."""

    async def publish(self, ref: str, name: str) -> None:
        """A directory has no other name."""

    async def remove_layer(self, key: str, ref: str | None = None) -> None:
        await asyncio.to_thread(layers.remove, self._places.layers, key)

    def contents(self) -> Mapping[str, float]:
        return {key: age_s for key, age_s in layers.ages(self._places.layers).items() if not key.startswith(hostlayer.PREFIX)}

    async def base_layer(
        self,
        *,
        requirements: bytes | None = None,
        dockerfile: bytes | None = None,
        context: Mapping[str, ContextFile] | None = None,
        pulled: Pulled | None = None,
    ) -> str:
        """This machine's own interpreter and the wheels, at /opt/venv. Raises BuildError with pip's own words."""
        if dockerfile is not None or pulled is not None:
            raise SpecError(
                "the local backend builds no image from a Dockerfile or a registry: it needs neither an engine nor an account",
                hint="write `image: {base: host, requirements: LOCK}` and `build: [COMMAND]`, or use a backend that builds images",
            )
        return str(await asyncio.to_thread(hostlayer.build, self._places, requirements))

    @property
    def place(self) -> str:
        return self._places.place

    async def aclose(self) -> None:
        """Sandboxes live on; nothing of ours needs an end."""


class _Creating:
    """Hold `home`, made when absent, against every other creator, here and in other processes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._fd = -1

    def __enter__(self) -> None:
        while True:
            own_directory(self._home.parent)  # the last sandbox's end may have taken it
            try:
                self._home.mkdir(mode=0o700, exist_ok=True)
                self._fd = os.open(self._home / "create.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # terminated this moment
            flock(self._fd, LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                return
            os.close(self._fd)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _entries(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except FileNotFoundError:
        return []


def read_meta(home: Path) -> dict[str, Any] | None:
    try:
        return json.loads(smallfiles.read(f"{home}/meta.json"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_meta(home: Path, spec: SandboxSpec, host: str) -> None:
    meta = {"name": spec.name, "installation": spec.installation, "tags": dict(spec.tags), "host_id": host}
    meta |= {"disk_mib": spec.resources.disk_mib}
    partial = home / "meta.json.partial"
    smallfiles.write(partial, json.dumps({**meta, "created_at": datetime.now(UTC).isoformat()}))
    partial.rename(home / "meta.json")


def _clear(home: Path) -> None:
    """Take away what an interrupted creation left."""
    disk.unmount(home / "disk")
    for entry in home.iterdir():
        if entry.is_dir():
            remove_tree(entry)
        elif entry.name not in ("meta.json", "create.lock"):
            entry.unlink()


def _furnish(home: Path, files: Mapping[str, bytes], places: Places) -> None:
    for folder in [home / name for name in ("run", "run/inbox", "run/logs")]:
        folder.mkdir()
        folder.chmod(0o755)
    for name in ("sh", "runner.sh"):
        (home / "run" / name).touch()
    for path, content in files.items():
        target = home / "run" / path.removeprefix(f"{RUN_DIR}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o444)
    os.mkfifo(home / "bell", 0o600)
    if places.drops_root:
        os.chown(home, places.identity.uid, places.identity.gid)
