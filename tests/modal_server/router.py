"""The command router of a worker: execs, their streams, and snapshots."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as sr
from modal_server.control import Control
from modal_server.machine import Exec

_CHUNK = 1 << 20
_ANSWERED_TTL_S = 30 * 24 * 3600


class Router:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._snapshots: dict[str, str] = {}

    async def TaskExecStart(self, request: sr.TaskExecStartRequest) -> sr.TaskExecStartResponse:
        running = self._control.task(request.task_id)
        image_env = self._control.images.known[running.definition.image_id].env if running.definition.image_id else {}
        env = {**image_env, **dict(request.env), **self._control.environment_of(request.secret_sources)}
        await running.machine.exec(request.exec_id, list(request.command_args), env, request.workdir, request.timeout_secs)
        return sr.TaskExecStartResponse()

    def _exec(self, request: Any) -> Exec:
        machine = self._control.task(request.task_id).machine
        if machine.result is not None:
            raise GRPCError(Status.NOT_FOUND, "the task has shut down")
        return machine.get_exec(request.exec_id)

    async def TaskExecStdioRead(self, request: sr.TaskExecStdioReadRequest) -> AsyncIterator[sr.TaskExecStdioReadResponse]:
        running = self._exec(request)
        is_out = request.file_descriptor == sr.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        stream, offset = running.stdout if is_out else running.stderr, request.offset
        while True:
            changed = stream.changed
            while offset < len(stream.data):
                chunk = bytes(stream.data[offset : offset + _CHUNK])
                offset += len(chunk)
                yield sr.TaskExecStdioReadResponse(data=chunk)
            if stream.ended:
                return
            await changed.wait()

    async def TaskExecWait(self, request: sr.TaskExecWaitRequest) -> sr.TaskExecWaitResponse:
        running = self._exec(request)
        await running.done.wait()
        self._exec(request)
        return sr.TaskExecWaitResponse(**_status(running))

    async def TaskExecPoll(self, request: sr.TaskExecPollRequest) -> sr.TaskExecPollResponse:
        return sr.TaskExecPollResponse(**_status(self._exec(request)))

    async def TaskExecStdinWrite(self, request: sr.TaskExecStdinWriteRequest) -> sr.TaskExecStdinWriteResponse:
        machine = self._control.task(request.task_id).machine
        await machine.write_stdin(self._exec(request), request.offset, request.data, request.eof)
        return sr.TaskExecStdinWriteResponse()

    async def TaskExecStdinStatus(self, request: sr.TaskExecStdinStatusRequest) -> sr.TaskExecStdinStatusResponse:
        running = self._exec(request)
        return sr.TaskExecStdinStatusResponse(num_bytes_written=len(running.stdin), closed=running.stdin_closed)

    async def TaskExecStdinWriteStream(self, stream: Any) -> sr.TaskExecStdinWriteStreamResponse:
        first = await stream.recv_message()
        running, offset = self._exec(first.start), first.start.offset
        machine = self._control.task(first.start.task_id).machine
        while (message := await stream.recv_message()) is not None:
            ends = message.WhichOneof("payload") == "end"
            await machine.write_stdin(running, offset, message.data, ends)
            offset += len(message.data)
        return sr.TaskExecStdinWriteStreamResponse()

    async def TaskSnapshotFilesystem(self, request: sr.TaskSnapshotFilesystemRequest) -> sr.TaskSnapshotFilesystemResponse:
        if request.snapshot_id not in self._snapshots:
            running = self._control.task(request.task_id)
            images = self._control.images
            target = images.folder / f"snapshot-{uuid.uuid4().hex}"
            await running.machine.snapshot(target)
            env = images.known[running.definition.image_id].env
            ttl_s = request.ttl_seconds if request.HasField("ttl_seconds") else _ANSWERED_TTL_S
            image = images.add((*running.machine.layers, target), env, ttl_s)
            self._snapshots[request.snapshot_id] = image.id
        return sr.TaskSnapshotFilesystemResponse(image_id=self._snapshots[request.snapshot_id])

    async def SandboxWaitUntilReady(self, request: sr.SandboxWaitUntilReadyTcrRequest) -> sr.SandboxWaitUntilReadyTcrResponse:
        running = self._control.task(request.task_id)
        probe = running.definition.readiness_probe
        deadline = asyncio.get_running_loop().time() + request.timeout
        while asyncio.get_running_loop().time() < deadline:
            probe_id = uuid.uuid4().hex
            await running.machine.exec(probe_id, list(probe.exec_command.argv), {}, "", 10)
            made = running.machine.get_exec(probe_id)
            await made.done.wait()
            if made.code == 0:
                return sr.SandboxWaitUntilReadyTcrResponse(ready_at=running.created_at)
            await asyncio.sleep(probe.interval_ms / 1000)
        raise GRPCError(Status.DEADLINE_EXCEEDED, "not ready in time")


def _status(running: Exec) -> dict[str, int]:
    if running.code is None:
        return {}
    return {"signal": -running.code} if running.code < 0 else {"code": running.code}
