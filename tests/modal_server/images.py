"""Images: a stack of directories. FROM a registry is one bare root; RUN really runs, in a sandbox, as root."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_server.machine import Host, Machine, Stream

from eval_pipeline.sandbox.local.places import Places, host_binds

_CONTEXT = "/run/build-context"
_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS = ("usr", "proc", "dev", "tmp", "run", "etc/ssl", "etc/alternatives", "home", "root", "var/tmp", "opt/python", "__modal")
_ETC = {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n", "hosts": "127.0.0.1 localhost\n", "ld.so.cache": ""}


@dataclass
class Image:
    id: str
    layers: tuple[Path, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    expires_at: float | None = None
    failure: str | None = None

    @property
    def built(self) -> bool:
        return bool(self.layers)


class Images:
    def __init__(self, folder: Path, places: Places, programs: Path | None = None) -> None:
        """programs: a tree whose /usr lies over this machine's, with a container engine in it."""
        self._folder = folder
        self.folder = folder / "layers"
        self.folder.mkdir(parents=True)
        self._base = _make_base(folder / "base")
        python = ["--ro-bind", sys.base_prefix, "/opt/python"] if not sys.base_prefix.startswith("/usr") else []
        binds = list(host_binds())
        if programs is not None:
            at = binds.index("/usr") - 1
            binds[at : at + 3] = ["--overlay-src", "/usr", "--overlay-src", str(programs / "usr"), "--ro-overlay", "/usr"]
        self.host = Host(places.bwrap, (*binds, *python), engines=programs is not None)
        self.known: dict[str, Image] = {}
        self._recipes: dict[str, api_pb2.Image] = {}
        self.names: dict[str, str] = {}
        self.mounts: dict[str, Path] = {}
        (folder / "uploads").mkdir()

    def get(self, image_id: str) -> Image:
        found = self.known.get(image_id)
        if found is None or (found.expires_at is not None and found.expires_at < time.time()):
            raise GRPCError(Status.NOT_FOUND, f"no image {image_id}, or it has expired")
        return found

    def get_or_create(self, recipe: api_pb2.Image) -> Image:
        image_id = "im-" + hashlib.sha256(recipe.SerializeToString(deterministic=True)).hexdigest()[:22]
        self._recipes[image_id] = recipe
        return self.known.setdefault(image_id, Image(image_id))

    def delete(self, image_id: str) -> None:
        self.get(image_id)
        del self.known[image_id]

    def registries(self) -> list[dict[str, str]]:
        """What was pulled, and with whose credentials."""
        return [
            {"from": line.split()[1], "secret_id": recipe.image_registry_config.secret_id}
            for recipe in self._recipes.values()
            for line in recipe.dockerfile_commands
            if line.startswith("FROM ")
        ]

    def add(self, layers: tuple[Path, ...], env: dict[str, str], ttl_s: int) -> Image:
        image = Image("im-" + uuid.uuid4().hex[:22], layers, env, None if ttl_s < 0 else time.time() + ttl_s)
        self.known[image.id] = image
        return image

    async def build(self, image: Image) -> None:
        recipe = self._recipes[image.id]
        parents = [self.get(base.image_id) for base in recipe.base_images]
        image.env = dict(parents[0].env) if parents else {}
        layers = parents[0].layers if parents else (self._base,)
        runs: list[str] = []
        for line in _joined(recipe.dockerfile_commands):
            verb, _, rest = line.strip().partition(" ")
            if verb == "RUN":
                runs.append(rest)
            elif verb == "ENV":
                name, _, value = rest.partition("=")
                image.env[name] = value.strip('"')
            elif verb == "COPY":
                *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
                runs.append("; ".join(["set -e", *(_copy(source, target) for source in sources)]))
            elif verb == "ADD":
                image.failure = f"this server does not add: {line}"
        context = self.mounts[recipe.context_mount_id] if recipe.context_mount_id else None
        image.layers = await self._run_all(image, runs, layers, context) if runs and image.failure is None else layers

    def upload(self, sha256_hex: str, data: bytes) -> None:
        (self._folder / "uploads" / sha256_hex).write_bytes(data)

    def uploaded(self, sha256_hex: str) -> bool:
        return (self._folder / "uploads" / sha256_hex).exists()

    def mount(self, files: Iterable[api_pb2.MountFile]) -> str:
        """A directory of uploaded files; the same for the same ones."""
        known = sorted((file.filename, file.sha256_hex, file.mode) for file in files)
        mount_id = "mo-" + hashlib.sha256(repr(known).encode()).hexdigest()[:22]
        folder = self.mounts.setdefault(mount_id, self._folder / "mounts" / mount_id)
        for name, digest, mode in known:
            target = folder / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._folder / "uploads" / digest, target)
            target.chmod(mode & 0o777)
        return mount_id

    async def _run_all(self, image: Image, runs: list[str], layers: tuple[Path, ...], context: Path | None) -> tuple[Path, ...]:
        mounts = [] if context is None else [(context, _CONTEXT)]
        machine = Machine(self._folder / "builds" / uuid.uuid4().hex, self.host, layers, mounts)
        await machine.start(["sleep", "infinity"], {}, 600)
        try:
            for number, script in enumerate(runs):
                await machine.exec(str(number), ["/bin/sh", "-c", script], image.env, "", 300)
                step = machine.get_exec(str(number))
                await step.done.wait()
                if step.code != 0:
                    image.failure = f"RUN {script[:300]}: {step.code}\n{_text(step.stdout)}{_text(step.stderr)}"
                    return layers
            target = self.folder / image.id
            await machine.snapshot(target)
            return (*layers, target)
        finally:
            await machine.kill(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)


def _copy(source: str, target: str) -> str:
    at = f"{_CONTEXT}/{source.removeprefix('./').strip('/')}"
    into = f"mkdir -p {target} && cp -r {at}/. {target}/"
    return f"if [ -d {at} ]; then {into}; else mkdir -p $(dirname {target}x); cp {at} {target}; fi"


def _text(stream: Stream) -> str:
    return stream.data[-2000:].decode(errors="replace")


def _joined(lines: object) -> list[str]:
    text = "\n".join(lines)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _make_base(root: Path) -> Path:
    root.mkdir(parents=True)
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in _ROOT_LINKS:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir()
    for name, content in _ETC.items():
        (root / "etc" / name).write_text(content)
    root.chmod(0o755)
    return root
