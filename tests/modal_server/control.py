"""The control plane: apps, images, volumes, secrets, sandboxes."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import empty_pb2
from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_server.faults import Faults
from modal_server.images import Images
from modal_server.machine import Machine
from modal_server.volumes import Volumes

MAX_TIMEOUT_S = 24 * 3600
MAX_DOMAINS = 100
_TAG = re.compile(r"[a-zA-Z0-9._-]{1,63}")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,63}")
_PAGE = 100
_DOMAIN = re.compile(r"(\*\.)?([a-zA-Z0-9-]+\.)*[a-zA-Z][a-zA-Z0-9-]*")


@dataclass
class Running:
    id: str
    task_id: str
    app_id: str
    definition: api_pb2.Sandbox
    tags: dict[str, str]
    machine: Machine
    created_at: float

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def metadata(self) -> api_pb2.SandboxHandleMetadata:
        return api_pb2.SandboxHandleMetadata(app_id=self.app_id, result=self.machine.result)


# Dollars an hour; other than the public ones, so that nobody can take those for an answer
RATES = {
    "cpu_hour_cost": "0.05",
    "cpu_hour_cost_sandbox": "0.2",
    "mem_gib_hour_cost": "0.01",
    "mem_gib_hour_cost_sandbox": "0.03",
    "gpu_hour_cost_h100": "3.95",
}


class Control:
    def __init__(self, folder: Path, images: Images, volumes: Volumes, orders: Faults) -> None:
        self._folder = folder
        self.images = images
        self.volumes = volumes
        self._orders = orders
        self.url = ""
        self.apps: dict[tuple[str, str], str] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.sandboxes: dict[str, Running] = {}
        self._starting: set[asyncio.Task[None]] = set()

    # -- who asks -----------------------------------------------------------------------------------------------------
    async def ClientHello(self, _: Any, metadata: Any) -> api_pb2.ClientHelloResponse:
        if not metadata.get("x-modal-token-id"):
            raise GRPCError(Status.UNAUTHENTICATED, "token missing")
        return api_pb2.ClientHelloResponse(image_builder_version="2025.06")

    async def AuthTokenGet(self, _: Any) -> api_pb2.AuthTokenGetResponse:
        return api_pb2.AuthTokenGetResponse(token=_token())

    async def EnvironmentGetOrCreate(self, request: Any) -> api_pb2.EnvironmentGetOrCreateResponse:
        name = request.deployment_name or "main"
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id=f"en-{name}", metadata=api_pb2.EnvironmentMetadata(name=name, settings=settings)
        )

    async def AppGetOrCreate(self, request: api_pb2.AppGetOrCreateRequest) -> api_pb2.AppGetOrCreateResponse:
        key = (request.environment_name, request.app_name)
        if key not in self.apps:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"no app {request.app_name}")
            self.apps[key] = "ap-" + uuid.uuid4().hex[:22]
        return api_pb2.AppGetOrCreateResponse(app_id=self.apps[key])

    # -- money --------------------------------------------------------------------------------------------------------
    async def WorkspaceNameLookup(self, _: Any) -> api_pb2.WorkspaceNameLookupResponse:
        return api_pb2.WorkspaceNameLookupResponse(username="loopback")

    async def WorkspaceBillingRates(self, _: Any) -> api_pb2.WorkspaceBillingRatesResponse:
        return api_pb2.WorkspaceBillingRatesResponse(rates=RATES)

    # -- images -------------------------------------------------------------------------------------------------------
    async def ImageGetOrCreate(self, request: api_pb2.ImageGetOrCreateRequest) -> api_pb2.ImageGetOrCreateResponse:
        image = self.images.get_or_create(request.image)
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS) if image.built else None
        return api_pb2.ImageGetOrCreateResponse(image_id=image.id, result=result)

    async def ImageJoinStreaming(
        self, request: api_pb2.ImageJoinStreamingRequest
    ) -> AsyncIterator[api_pb2.ImageJoinStreamingResponse]:
        image = self.images.known[request.image_id]
        if not image.built:
            await self.images.build(image)
        status = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
        if image.failure is not None:
            image.layers, status = (), api_pb2.GenericResult.GENERIC_STATUS_FAILURE
        result = api_pb2.GenericResult(status=status, exception=image.failure or "")
        image.failure = None
        yield api_pb2.ImageJoinStreamingResponse(result=result, eof=True)

    async def ImageFromId(self, request: api_pb2.ImageFromIdRequest) -> api_pb2.ImageFromIdResponse:
        return api_pb2.ImageFromIdResponse(image_id=self.images.get(request.image_id).id)

    async def ImagePublish(self, request: api_pb2.ImagePublishRequest) -> api_pb2.ImagePublishResponse:
        self.images.names[request.tag] = self.images.get(request.image_id).id
        return api_pb2.ImagePublishResponse(image_id=request.image_id)

    async def ImageGetByTag(self, request: api_pb2.ImageGetByTagRequest) -> api_pb2.ImageGetByTagResponse:
        if request.tag not in self.images.names:
            raise GRPCError(Status.NOT_FOUND, f"no image {request.tag}")
        return api_pb2.ImageGetByTagResponse(image_id=self.images.names[request.tag])

    async def ImageDelete(self, request: api_pb2.ImageDeleteRequest) -> empty_pb2.Empty:
        self.images.delete(request.image_id)
        return empty_pb2.Empty()

    async def MountBatchedCheckExistence(
        self, request: api_pb2.MountBatchedCheckExistenceRequest
    ) -> api_pb2.MountBatchedCheckExistenceResponse:
        missing = [digest for digest in request.sha256_hex_hashes if not self.images.uploaded(digest)]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, request: api_pb2.MountPutFileRequest) -> api_pb2.MountPutFileResponse:
        if request.WhichOneof("data_oneof") is not None:
            self.images.upload(request.sha256_hex, request.data)
        return api_pb2.MountPutFileResponse(exists=self.images.uploaded(request.sha256_hex))

    async def MountGetOrCreate(self, request: api_pb2.MountGetOrCreateRequest) -> api_pb2.MountGetOrCreateResponse:
        return api_pb2.MountGetOrCreateResponse(mount_id=self.images.mount(request.files))

    # -- volumes ------------------------------------------------------------------------------------------------------
    async def VolumeGetOrCreate(self, request: api_pb2.VolumeGetOrCreateRequest) -> api_pb2.VolumeGetOrCreateResponse:
        create = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        volume = self.volumes.get_or_create(request.environment_name, request.deployment_name, create)
        version = api_pb2.VolumeFsVersion.VOLUME_FS_VERSION_V2
        metadata = api_pb2.VolumeMetadata(version=version, name=volume.name)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=volume.id, version=version, metadata=metadata)

    async def VolumePutFiles2(self, request: api_pb2.VolumePutFiles2Request) -> api_pb2.VolumePutFiles2Response:
        return await asyncio.to_thread(self.volumes.put, request)

    async def VolumeListFiles2(self, request: api_pb2.VolumeListFiles2Request) -> AsyncIterator[api_pb2.VolumeListFiles2Response]:
        yield api_pb2.VolumeListFiles2Response(entries=list(self.volumes.entries(request)))

    async def VolumeGetFile2(self, request: api_pb2.VolumeGetFile2Request) -> api_pb2.VolumeGetFile2Response:
        return self.volumes.locate(request)

    async def VolumeRemoveFile2(self, request: api_pb2.VolumeRemoveFile2Request) -> empty_pb2.Empty:
        self.volumes.remove(request)
        return empty_pb2.Empty()

    # -- secrets ------------------------------------------------------------------------------------------------------
    async def SecretGetOrCreate(self, request: api_pb2.SecretGetOrCreateRequest) -> api_pb2.SecretGetOrCreateResponse:
        named = [
            secret_id
            for secret_id, known in self.secrets.items()
            if known["name"] == request.deployment_name and request.deployment_name
        ]
        kind = request.object_creation_type
        if named and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            raise GRPCError(Status.ALREADY_EXISTS, f"secret {request.deployment_name} exists")
        if not named and kind == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED:
            raise GRPCError(Status.NOT_FOUND, f"no secret {request.deployment_name}")
        if named and kind == api_pb2.OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS:
            self.secrets.pop(named.pop())
        if not named:
            named = ["st-" + uuid.uuid4().hex[:22]]
            made = {"name": request.deployment_name, "values": dict(request.env_dict), "created_at": time.time()}
            self.secrets[named[0]] = made  # an existing one keeps its values, whatever the request holds
        known = self.secrets[named[0]]
        lacking = set(request.required_keys) - known["values"].keys()
        if lacking:
            raise GRPCError(Status.FAILED_PRECONDITION, f"secret is missing {sorted(lacking)}")
        return api_pb2.SecretGetOrCreateResponse(secret_id=named[0], metadata=_secret_metadata(known))

    async def SecretUpdate(self, request: api_pb2.SecretUpdateRequest) -> empty_pb2.Empty:
        """It merges: there is no way to take a key away."""
        self._secret(request.secret_id)["values"] |= {update.key: update.value for update in request.updates}
        return empty_pb2.Empty()

    async def SecretList(self, request: api_pb2.SecretListRequest) -> api_pb2.SecretListResponse:
        before = request.pagination.created_before or float("inf")
        found = sorted(self.secrets.items(), key=lambda item: -item[1]["created_at"])
        items = [
            api_pb2.SecretListItem(
                label=known["name"], secret_id=secret_id, created_at=known["created_at"], metadata=_secret_metadata(known)
            )
            for secret_id, known in found
            if known["created_at"] < before and known["name"]
        ]
        return api_pb2.SecretListResponse(items=items[: request.pagination.max_objects or _PAGE])

    async def SecretDelete(self, request: api_pb2.SecretDeleteRequest) -> empty_pb2.Empty:
        self._secret(request.secret_id)
        del self.secrets[request.secret_id]
        return empty_pb2.Empty()

    def _secret(self, secret_id: str) -> dict[str, Any]:
        if secret_id not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"no secret {secret_id}")
        return self.secrets[secret_id]

    def environment_of(self, sources: Iterable[api_pb2.SecretSource]) -> dict[str, str]:
        env: dict[str, str] = {}
        for source in sources:
            is_inline = source.WhichOneof("source") == "env"
            env |= dict(source.env.contents) if is_inline else self._secret(source.secret_id)["values"]
        return env

    # -- sandboxes ----------------------------------------------------------------------------------------------------
    async def SandboxCreateV2(self, request: api_pb2.SandboxCreateV2Request) -> api_pb2.SandboxCreateV2Response:
        wanted = request.definition
        _check(wanted, request.tags)
        holder = self._named(request.app_id, wanted.name) if wanted.name else None
        if holder is not None and holder.machine.result is None:
            raise GRPCError(Status.ALREADY_EXISTS, f"a sandbox named {wanted.name} is running")
        image = self.images.get(wanted.image_id)
        sandbox_id = "sb-v2" + uuid.uuid4().hex[:26].upper()
        mounts = [(self._mounted(mount), mount.mount_path) for mount in wanted.volume_mounts]
        machine = Machine(self._folder / sandbox_id, self.images.host, image.layers, mounts, vm=wanted.runtime == "vm")
        running = Running(
            id=sandbox_id,
            task_id=f"ta-{uuid.uuid4().hex[:22]}V",
            app_id=request.app_id,
            definition=wanted,
            tags={tag.tag_name: tag.tag_value for tag in request.tags},
            machine=machine,
            created_at=time.time(),
        )
        self.sandboxes[sandbox_id] = running
        env = image.env | self.environment_of(request.secret_sources)
        starting = asyncio.create_task(machine.start(list(wanted.entrypoint_args), env, wanted.timeout_secs))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return api_pb2.SandboxCreateV2Response(sandbox_id=sandbox_id, task_id=running.task_id, metadata=running.metadata)

    def _mounted(self, mount: api_pb2.VolumeMount) -> Path:
        folder = self.volumes.get(mount.volume_id).folder.joinpath(*Path(mount.sub_path.strip("/")).parts)
        if not folder.is_dir() or not mount.read_only:
            raise GRPCError(Status.INVALID_ARGUMENT, f"{mount.sub_path!r} is no directory, or is not mounted read-only")
        return folder

    def _named(self, app_id: str, name: str) -> Running | None:
        found = [one for one in self.sandboxes.values() if one.app_id == app_id and one.name == name]
        found.sort(key=lambda one: (one.machine.result is None, one.created_at))
        return found[-1] if found else None

    def sandbox(self, sandbox_id: str) -> Running:
        if sandbox_id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {sandbox_id}")
        return self.sandboxes[sandbox_id]

    def task(self, task_id: str) -> Running:
        found = [one for one in self.sandboxes.values() if one.task_id == task_id]
        if not found:
            raise GRPCError(Status.NOT_FOUND, f"no task {task_id}")
        return found[0]

    async def SandboxGetFromNameV2(self, request: api_pb2.SandboxGetFromNameRequest) -> api_pb2.SandboxGetFromNameResponse:
        app_id = self.apps.get((request.environment_name, request.app_name), "")
        found = self._named(app_id, request.sandbox_name)
        if found is None or (found.machine.result is not None and not request.include_terminated):
            raise GRPCError(Status.NOT_FOUND, f"no sandbox named {request.sandbox_name}")
        return api_pb2.SandboxGetFromNameResponse(sandbox_id=found.id, metadata=found.metadata)

    async def SandboxGetFromName(self, request: api_pb2.SandboxGetFromNameRequest) -> api_pb2.SandboxGetFromNameResponse:
        """What the client asks next: sandboxes of the first version, which nobody makes here."""
        raise GRPCError(Status.NOT_FOUND, f"no sandbox named {request.sandbox_name}")

    async def SandboxWaitV2(self, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
        found = self.sandbox(request.sandbox_id)
        if request.timeout:
            with suppress(TimeoutError):
                await asyncio.wait_for(found.machine.ended.wait(), request.timeout)
        return api_pb2.SandboxWaitResponse(result=found.machine.result, metadata=found.metadata)

    async def SandboxTerminateV2(self, request: api_pb2.SandboxTerminateRequest) -> api_pb2.SandboxTerminateResponse:
        found = self.sandbox(request.sandbox_id)
        before = found.machine.result
        await found.machine.kill(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    async def SandboxListV2(self, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            one
            for one in self.sandboxes.values()
            if one.app_id == request.app_id
            and (request.include_finished or one.machine.result is None)
            and wanted.items() <= one.tags.items()
            and (not request.before_timestamp or one.created_at < request.before_timestamp)
        ]
        found.sort(key=lambda one: -one.created_at)
        infos = [
            api_pb2.SandboxInfo(
                id=one.id,
                created_at=one.created_at,
                app_id=one.app_id,
                name=one.name,
                tags=_tags(one.tags),
                metadata=one.metadata,
                task_info=api_pb2.TaskInfo(id=one.task_id, result=one.machine.result),
            )
            for one in found[:_PAGE]
        ]
        return api_pb2.SandboxListResponse(sandboxes=infos)

    async def SandboxTagsGetV2(self, request: Any) -> api_pb2.SandboxTagsGetResponse:
        return api_pb2.SandboxTagsGetResponse(tags=_tags(self.sandbox(request.sandbox_id).tags))

    async def SandboxTagsSetV2(self, request: api_pb2.SandboxTagsSetRequest) -> empty_pb2.Empty:
        self.sandbox(request.sandbox_id).tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return empty_pb2.Empty()

    async def SandboxGetTaskIdV2(self, request: api_pb2.SandboxGetTaskIdRequest) -> api_pb2.SandboxGetTaskIdResponse:
        found = self.sandbox(request.sandbox_id)
        if found.machine.result is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=found.machine.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=found.task_id)

    async def SandboxGetCommandRouterAccess(self, request: Any) -> api_pb2.SandboxGetCommandRouterAccessResponse:
        found = self.sandbox(request.sandbox_id) if request.sandbox_id else self.task(request.task_id)
        if found.machine.result is not None:
            raise GRPCError(Status.NOT_FOUND, "the sandbox has ended")
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=_token())

    async def close(self) -> None:
        for one in list(self.sandboxes.values()):
            await one.machine.kill(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)


def _check(wanted: api_pb2.Sandbox, tags: Iterable[api_pb2.SandboxTag]) -> None:
    problems: list[str] = []
    if wanted.name and not _NAME.fullmatch(wanted.name):
        problems.append(f"bad name {wanted.name!r}")
    if not 0 < wanted.timeout_secs <= MAX_TIMEOUT_S:
        problems.append(f"timeout {wanted.timeout_secs} is not within 24 hours")
    if any(not _TAG.fullmatch(tag.tag_name) or not _TAG.fullmatch(tag.tag_value) for tag in tags):
        problems.append("bad tags")
    if wanted.runtime not in ("", "gvisor", "vm"):
        problems.append(f"no runtime {wanted.runtime!r}")
    domains = wanted.network_access.allowed_domains
    if len(domains) > MAX_DOMAINS or any(not _DOMAIN.fullmatch(domain) for domain in domains):
        problems.append("bad domain allowlist")
    if problems:
        raise GRPCError(Status.INVALID_ARGUMENT, "; ".join(problems))


def _tags(tags: dict[str, str]) -> list[api_pb2.SandboxTag]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]


def _secret_metadata(known: dict[str, Any]) -> api_pb2.SecretMetadata:
    created = api_pb2.CreationInfo(created_at=known["created_at"])
    return api_pb2.SecretMetadata(name=known["name"], keys=list(known["values"]), creation_info=created)


def _token() -> str:
    def part(data: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': time.time() + 3600})}.none"
