"""The app's contract: `evals.app.yaml` in the app's folder, read at the arm's commit."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.ids import Slug

Argv = Annotated[tuple[str, ...], Field(min_length=1)]

_ENDPOINT = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?:[1-9][0-9]{0,4}")


def _endpoint(value: str) -> str:
    if not _ENDPOINT.fullmatch(value) or int(value.rpartition(":")[2]) > 65535:
        raise ValueError(f"{value!r} is not an egress endpoint: write host:port, lower case, no wildcard")
    return value


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class ImageSpec(Spec):
    """base `host`: this machine's /usr, the running interpreter and the wheels of `requirements` (a pip lock with hashes)."""

    base: Literal["host"]
    requirements: str | None = None


class SecretNames(Spec):
    agent: tuple[str, ...] = ()


class Resources(Spec):
    cpu: Annotated[float, Field(gt=0)] = 1.0
    memory_mib: Annotated[int, Field(ge=64)] = 1024
    disk_mib: Annotated[int, Field(ge=16)] = 1024


class AppManifest(Spec):
    """Commands run in the app's folder. build: once per commit; restore: once per (commit, world); agent: per attempt."""

    name: Slug
    image: ImageSpec
    build: Argv | None = None
    restore: Argv | None = None
    agent: Argv
    secrets: SecretNames = SecretNames()
    egress: tuple[Endpoint, ...] = ()
    resources: Resources = Resources()
