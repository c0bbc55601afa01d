"""What images of an app stand on, on Modal: built once each, and kept under the id that Modal gave it."""

from __future__ import annotations

import base64
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox import modal_scripts as scripts
from eval_pipeline.sandbox.base import ContextFile, Pulled

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_client import Cloud

_FORMAT = 1
ECR_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One of the three: `requirements` (None: no wheels) on Modal's own Python, a Dockerfile with what it copies, or a registry's image."""

    requirements: bytes | None = None
    dockerfile: bytes | None = None
    context: Mapping[str, ContextFile] = field(default_factory=dict[str, ContextFile])
    pulled: Pulled | None = None

    def __post_init__(self) -> None:
        if self.requirements is not None and (self.dockerfile is not None or self.pulled is not None):
            raise SpecError("only `image: {base: host}` takes requirements: another image brings its own")

    @property
    def python(self) -> str:
        return f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm"

    @property
    def commands(self) -> list[str]:
        return [] if self.dockerfile is not None or self.pulled is not None else _host_commands(self.requirements)

    @property
    def key(self) -> str:
        parts = [str(_FORMAT), scripts.PREPARE, *self.commands, (self.dockerfile or b"").decode()]
        if self.pulled is not None:
            parts.append(f"{'ecr' if self.pulled.ecr else 'registry'} {self.pulled.tag}")
        elif self.dockerfile is None:
            parts.append(self.python)
        for path, file in sorted(self.context.items()):
            parts.append(f"{path} {file.executable} {hashlib.sha256(file.data).hexdigest()}")
        return f"base-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


async def build_base(cloud: Cloud, recipe: Recipe, ecr_secret: str | None) -> tuple[str, float]:
    """The image's id and the seconds it took. Raises BuildError with the end of Modal's own words."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="evals-") as folder:
        start = _start(recipe, Path(folder), cloud, ecr_secret)
        built = await cloud.build(lambda image: start(image).dockerfile_commands([*recipe.commands, f"RUN {scripts.PREPARE}"]))
    return built, time.monotonic() - began


def _start(recipe: Recipe, folder: Path, cloud: Cloud, ecr_secret: str | None) -> Callable[[Any], Any]:
    pulled = recipe.pulled
    if pulled is not None and pulled.ecr:
        if ecr_secret is None:
            raise SpecError(
                f"`image.ecr: {pulled.tag}` needs AWS credentials on Modal",
                hint=f"make a Modal Secret with {', '.join(ECR_KEYS)}, and name it in EVALS_MODAL_ECR_SECRET",
            )
        secret = cloud.named_secret(ecr_secret, ECR_KEYS)
        return lambda image: image.from_aws_ecr(pulled.tag, secret=secret)
    if pulled is not None:
        return lambda image: image.from_registry(pulled.tag)
    if recipe.dockerfile is None:
        return lambda image: image.from_registry(recipe.python)
    path = folder / "Dockerfile"
    path.write_bytes(recipe.dockerfile)
    context = folder / "context"
    context.mkdir()
    for name, file in recipe.context.items():
        target = context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(0o755 if file.executable else 0o644)
    return lambda image: image.from_dockerfile(path, context_dir=context)


def _host_commands(requirements: bytes | None) -> list[str]:
    if requirements is None:
        return ["RUN python3 -m venv --without-pip /opt/venv"]
    text = base64.b64encode(requirements).decode()
    pieces = [text[start : start + 4000] for start in range(0, len(text), 4000)]
    install = "/opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /opt/requirements.lock"
    return [
        "RUN python3 -m venv /opt/venv",
        *(f"RUN printf %s {piece} >>/opt/requirements.b64" for piece in pieces),
        f"RUN base64 -d /opt/requirements.b64 >/opt/requirements.lock && {install}",
    ]
