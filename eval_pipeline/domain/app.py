"""The app's contract: `evals.app.yaml` in the app's folder, read at the arm's commit."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from eval_pipeline.domain.base import Grown, Spec
from eval_pipeline.domain.ids import Slug

Argv = Annotated[tuple[str, ...], Field(min_length=1)]

PACKAGE_INDEX = "package-index"
"""Stands in `build_egress` for the hosts of pip's and npm's own configuration."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ENDPOINT = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?:[1-9][0-9]{0,4}")


def _endpoint(value: str) -> str:
    if not _ENDPOINT.fullmatch(value) or int(value.rpartition(":")[2]) > 65535:
        raise ValueError(f"{value!r} is not an egress endpoint: write host:port, lower case, no wildcard")
    return value


def _build_endpoint(value: str) -> str:
    return value if value == PACKAGE_INDEX else _endpoint(value)


def _secret_name(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError(f"{value!r} is no name of an environment variable: write letters, digits and '_', no digit first")
    if value.startswith("EVALS_"):
        raise ValueError(f"{value!r} is a setting of the pipeline itself and no secret of an app")
    return value


Endpoint = Annotated[str, AfterValidator(_endpoint)]
SecretName = Annotated[str, AfterValidator(_secret_name)]
BuildEndpoint = Annotated[str, AfterValidator(_build_endpoint)]


class ImageSpec(Grown):
    """base `host`: this machine's /usr, the running interpreter and the wheels of `requirements` (a pip lock with hashes).

    Of a backend that has images of its own: dockerfile, a path in the app's folder; registry, an image's tag or digest; ecr, the same
    in AWS' registry, with the installation's credentials. A tag is pulled once: what it points to later is another image's name.
    """

    _LATER = ("dockerfile", "registry", "ecr")

    base: Literal["host"] | None = None
    requirements: str | None = None
    dockerfile: str | None = None
    registry: str | None = None
    ecr: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if [self.base, self.dockerfile, self.registry, self.ecr].count(None) != 3:
            raise ValueError("write one of `base: host`, `dockerfile: PATH`, `registry: IMAGE` and `ecr: IMAGE`")
        if self.requirements is not None and self.base is None:
            raise ValueError("`requirements` belongs to `base: host`; a Dockerfile installs its own")
        return self


class SecretNames(Grown):
    """build: what `build` and `reset` see. agent: what the services and the agent see. `restore` and `dump` see none."""

    _LATER = ("build",)

    build: tuple[SecretName, ...] = ()
    agent: tuple[SecretName, ...] = ()


class ServicesSpec(Grown):
    """up: stays in the foreground and ends with the code of the first service that died; or exits 0 with services of its own left.

    ready: exits 0 once all answer; asked again until `ready_timeout_s`. down: stops them cleanly, where somebody goes on with what
    they wrote; a cell's end with its sandbox, after the dump. compose: a file, in place of the three commands: its images are built and
    pulled once, into the image layer, and its services are ready once they are healthy.
    agent_engine: the agent may use the container engine, too. Whoever may do that is root in its sandbox.
    ports: what listens on the sandbox's loopback and is worth looking at; `evals world open` leads it out. No agent's run uses them.
    """

    _LATER = ("ports", "agent_engine")

    up: Argv | None = None
    ready: Argv | None = None
    down: Argv | None = None
    compose: str | None = None
    agent_engine: bool = False
    ready_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.up is None) == (self.compose is None):
            raise ValueError("write either `up: [COMMAND]` or `compose: FILE`")
        if self.compose is not None and (self.ready is not None or self.down is not None):
            raise ValueError("`ready` and `down` belong to `up`; compose has health checks of its own")
        if self.agent_engine and self.compose is None:
            raise ValueError("`agent_engine` belongs to `compose`: without it no engine runs")
        return self


class Resources(Spec):
    cpu: Annotated[float, Field(gt=0)] = 1.0
    memory_mib: Annotated[int, Field(ge=64)] = 1024
    disk_mib: Annotated[int, Field(ge=16)] = 1024


class ModelsSpec(Spec):
    """gateway: the agent's calls go through the host's model gateway, which measures them and keeps the real keys.

    openai, anthropic: the names of the keys, as `secrets.agent` declares them; one that is not among these is not served.
    """

    gateway: bool = False
    openai: SecretName = "OPENAI_API_KEY"
    anthropic: SecretName = "ANTHROPIC_API_KEY"

    @model_validator(mode="after")
    def _two_keys(self) -> Self:
        if self.openai == self.anthropic:
            raise ValueError(f"{self.openai} can't be the key of two providers")
        return self


class AppManifest(Grown):
    """Commands run in the app's folder.

    build: once per image, on the branch's head or an older commit. reset: once per commit, after its checkout over an image; without
    it `build` runs again. restore: once per (commit, world). services, agent, dump: per attempt.
    dump: writes the state in world format below /out/state; a link to a path below /world stands for that file, unchanged.
    schema_version: of the records and permissions that `dump` writes. restores: the versions that `restore` can load; None: any.
    """

    _LATER = ("build_egress", "reset", "services", "dump", "schema_version", "restores", "models")

    name: Slug
    image: ImageSpec
    build: Argv | None = None
    build_egress: tuple[BuildEndpoint, ...] = ()
    reset: Argv | None = None
    restore: Argv | None = None
    services: ServicesSpec | None = None
    dump: Argv | None = None
    schema_version: int | None = None
    restores: tuple[int, ...] | None = None
    agent: Argv
    secrets: SecretNames = SecretNames()
    egress: tuple[Endpoint, ...] = ()
    resources: Resources = Resources()
    models: ModelsSpec = ModelsSpec()

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.models.gateway and not self.model_keys:
            names = f"{self.models.openai} or {self.models.anthropic}"
            raise ValueError(f"`models.gateway` needs a key among `secrets.agent`: {names}, or a name that `models` gives")
        return self

    @property
    def model_keys(self) -> dict[str, str]:
        """The providers that the model gateway serves, each with its key's name; none without the gateway."""
        named = {"openai": self.models.openai, "anthropic": self.models.anthropic}
        return {one: name for one, name in named.items() if self.models.gateway and name in self.secrets.agent}

    @property
    def compose(self) -> str | None:
        """The file of services that need a container engine."""
        return None if self.services is None else self.services.compose

    @property
    def loads(self) -> tuple[int, ...] | None:
        """The schema versions of worlds that `restore` can load; without `restores` the one that `dump` writes. None: any."""
        if self.restores is not None or self.schema_version is None:
            return self.restores
        return (self.schema_version,)
