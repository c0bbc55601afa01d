"""One app of one Modal environment: what is asked of it to make, find and list sandboxes, images and volumes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import modal
import modal.exception as sdk
from modal.experimental import image_delete

from eval_pipeline.errors import BuildError, LayerGone
from eval_pipeline.sandbox.base import WORLD_DIR, Resources
from eval_pipeline.sandbox.modal_calls import CALL_TIMEOUT_S, NameTaken, configure, translated, within
from eval_pipeline.sandbox.modal_machine import Machine, found_secret
from eval_pipeline.settings import ModalSettings

CREATE_TIMEOUT_S = 600.0
BUILD_TIMEOUT_S = 3600.0
UPLOAD_TIMEOUT_S = 3600.0
RATES_TIMEOUT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """image: the id of one that is built. world: (volume, path in it). domains: None is no network at all."""

    name: str
    tags: Mapping[str, str]
    image: str
    world: tuple[str, str] | None
    domains: Sequence[str] | None
    resources: Resources
    lifetime_s: int


class Cloud:
    """One app of one environment."""

    def __init__(self, settings: ModalSettings) -> None:
        self._settings = settings
        self._app: modal.App | None = None

    async def app(self) -> modal.App:
        found = self._app
        if found is None:
            configure()
            with translated("the app"):
                found = self._app = await within(
                    modal.App.lookup.aio(self._settings.app, create_if_missing=True, environment_name=self._settings.environment)
                )
        return found

    async def create(self, wanted: Wanted, command: Sequence[str]) -> Machine:
        """Raises NameTaken, Throttled or LayerGone."""
        app, world = await self.app(), wanted.world
        volumes: dict[str | os.PathLike[str], Any] = {}
        if world is not None:
            volume = modal.Volume.from_name(world[0], environment_name=self._settings.environment)
            volumes[WORLD_DIR] = volume.with_mount_options(read_only=True, sub_path=world[1])
        with translated(wanted.name):
            try:
                made = await within(
                    modal.Sandbox.create.aio(
                        *command,
                        app=app,
                        name=wanted.name,
                        tags=dict(wanted.tags),
                        image=modal.Image.from_id(wanted.image),
                        timeout=wanted.lifetime_s,
                        cpu=wanted.resources.cpu,
                        memory=wanted.resources.memory_mib,
                        runtime=self._settings.runtime,
                        region=self._settings.region,
                        volumes=volumes,
                        block_network=wanted.domains is None,
                        outbound_domain_allowlist=wanted.domains,
                    ),
                    CREATE_TIMEOUT_S,
                )
            except sdk.AlreadyExistsError as error:
                raise NameTaken(f"a sandbox named {wanted.name} is running") from error
            except sdk.NotFoundError as error:
                raise LayerGone(f"{wanted.name} can't stand on {wanted.image}: {error}") from error
        return Machine(wanted.name, made)

    async def named(self, name: str, *, ended: bool = False) -> Machine | None:
        """The running one; with `ended` else the last one that ran."""
        await self.app()
        with translated(name):
            try:
                found = await within(
                    modal.Sandbox.from_name.aio(
                        self._settings.app, name, environment_name=self._settings.environment, include_terminated=ended
                    )
                )
            except sdk.NotFoundError:
                return None
        return Machine(name, found)

    async def running(self) -> list[Machine]:
        app = await self.app()
        with translated("the list of sandboxes"):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return [Machine("", found) async for found in modal.Sandbox.list.aio(app_id=app.app_id)]

    async def build(self, recipe: Callable[[type[modal.Image]], modal.Image]) -> str:
        """The id of the image. Raises BuildError with the end of Modal's own words."""
        app = await self.app()
        with translated("the image"):
            try:
                image = await within(recipe(modal.Image).build.aio(app), BUILD_TIMEOUT_S)
            except sdk.ImageBuildError as error:
                raise BuildError(f"Modal could not build the image: {str(error)[-1500:]}") from error
        return image.object_id

    async def publish(self, image_id: str, name: str) -> None:
        """Raises LayerGone."""
        app = await self.app()
        with translated(f"the image {name}"):
            try:
                image = await within(modal.Image.from_id(image_id).build.aio(app))
                await within(image.publish.aio(name, environment_name=self._settings.environment))
            except sdk.NotFoundError as error:
                raise LayerGone(f"{image_id} can't be published as {name}: {error}") from error

    async def delete_image(self, image_id: str) -> None:
        """Also one that has gone."""
        await self.app()
        with translated(f"the image {image_id}"), suppress(sdk.NotFoundError):
            await within(image_delete.aio(image_id))  # pyright: ignore[reportFunctionMemberAccess]

    async def has_secret(self, name: str, keys: Sequence[str]) -> bool:
        """Whether there is one of that name with these keys."""
        await self.app()
        with translated(f"the Secret {name}"):
            return await found_secret(self.named_secret(name, keys)) is not None

    async def replace_secret(self, name: str, values: Mapping[str, str]) -> None:
        """An answer that was lost may have been a success: the keys tell."""
        await self.delete_secret(name)
        with translated(f"the Secret {name}"):
            try:
                await within(modal.Secret.objects.create.aio(name, dict(values), environment_name=self._settings.environment))
            except sdk.AlreadyExistsError:
                if await found_secret(self.named_secret(name, list(values))) is None:
                    raise

    async def delete_secret(self, name: str) -> None:
        await self.app()
        with translated(f"the Secret {name}"):
            await within(modal.Secret.objects.delete.aio(name, allow_missing=True, environment_name=self._settings.environment))

    def named_secret(self, name: str, required_keys: Sequence[str]) -> modal.Secret:
        """Not asked for yet."""
        return modal.Secret.from_name(name, environment_name=self._settings.environment, required_keys=list(required_keys))

    async def volume(self, name: str) -> Shelf:
        await self.app()
        with translated(f"the volume {name}"):
            volume = modal.Volume.from_name(name, environment_name=self._settings.environment, create_if_missing=True, version=2)
            return Shelf(await within(volume.hydrate.aio()))

    async def billing_rates(self) -> dict[str, Decimal]:
        """What this account pays, in dollars an hour or a month, by Modal's own names. Raises InfrastructureError without a token."""
        configure()
        with translated("the billing rates"):
            rates = await within(modal.Workspace.from_context().billing.rates.aio(), RATES_TIMEOUT_S)
        return {name: rates[name] for name in rates}

    async def check_secrets(self) -> int:
        """How many secrets the environment holds."""
        await self.app()
        with translated("the secrets"):
            found = await within(modal.Secret.objects.list.aio(environment_name=self._settings.environment or ""))
        return len(found)


class Shelf:
    """A volume."""

    def __init__(self, volume: modal.Volume) -> None:
        self._volume = volume

    async def names(self, folder: str) -> dict[str, int]:
        """Files below `folder`, relative to it, with their sizes; empty when there is no such folder."""
        with translated(f"the volume's {folder}"):
            try:
                found = await within(self._volume.listdir.aio(f"/{folder}", recursive=True), UPLOAD_TIMEOUT_S)
            except sdk.NotFoundError:
                return {}
        prefix = f"{folder}/"
        paths = [(entry.path.lstrip("/"), entry) for entry in found if entry.type.name == "FILE"]
        return {path.removeprefix(prefix): entry.size for path, entry in paths}

    async def read(self, path: str) -> bytes | None:
        with translated(f"the volume's {path}"):
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    return b"".join([chunk async for chunk in self._volume.read_file.aio(path)])
            except (FileNotFoundError, sdk.NotFoundError):
                return None

    async def sha256(self, path: str) -> str | None:
        """Of the content as it is read back; None when there is no such file."""
        total = hashlib.sha256()
        with translated(f"the volume's {path}"):
            try:
                async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                    async for chunk in self._volume.read_file.aio(path):
                        total.update(chunk)
            except (FileNotFoundError, sdk.NotFoundError):
                return None
        return total.hexdigest()

    async def put(self, files: Mapping[str, Path | IO[bytes]]) -> None:
        """Blocks that are there already are not sent again."""
        with translated("an upload to the volume"):
            async with asyncio.timeout(UPLOAD_TIMEOUT_S), self._volume.batch_upload.aio(force=True) as batch:
                for target, source in files.items():
                    batch.put_file(source, f"/{target}")  # pyright: ignore[reportArgumentType]
