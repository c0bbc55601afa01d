"""Images: a stack of directories. FROM a registry is one bare root; RUN really runs, in a sandbox, as root."""

from __future__ import annotations

import hashlib
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_server.machine import Host, Machine, Stream

from eval_pipeline.sandbox.local.places import Places, host_binds

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
    def __init__(self, folder: Path, places: Places) -> None:
        self._folder = folder
        self.folder = folder / "layers"
        self.folder.mkdir(parents=True)
        self._base = _make_base(folder / "base")
        python = ["--ro-bind", sys.base_prefix, "/opt/python"] if not sys.base_prefix.startswith("/usr") else []
        self.host = Host(places.bwrap, (*host_binds(), *python))
        self.known: dict[str, Image] = {}
        self._recipes: dict[str, api_pb2.Image] = {}
        self.names: dict[str, str] = {}

    def get(self, image_id: str) -> Image:
        found = self.known.get(image_id)
        if found is None or (found.expires_at is not None and found.expires_at < time.time()):
            raise GRPCError(Status.NOT_FOUND, f"no image {image_id}, or it has expired")
        return found

    def get_or_create(self, recipe: api_pb2.Image) -> Image:
        image_id = "im-" + hashlib.sha256(recipe.SerializeToString(deterministic=True)).hexdigest()[:22]
        self._recipes[image_id] = recipe
        return self.known.setdefault(image_id, Image(image_id))

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
            elif verb in ("COPY", "ADD"):
                image.failure = f"this server has no build context: {line}"
        image.layers = await self._run_all(image, runs, layers) if runs and image.failure is None else layers

    async def _run_all(self, image: Image, runs: list[str], layers: tuple[Path, ...]) -> tuple[Path, ...]:
        machine = Machine(self._folder / "builds" / uuid.uuid4().hex, self.host, layers)
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
