"""Faults on order. Each names a method (or `*` for all that change something) and happens `times` times, or at a `rate`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from google.protobuf import any_pb2
from grpclib import GRPCError, Status
from grpclib.encoding.base import StatusDetailsCodecBase
from modal_proto import api_pb2

MUTATING = (
    "SandboxCreateV2",
    "SandboxTerminateV2",
    "SandboxTagsSetV2",
    "TaskExecStart",
    "TaskSnapshotFilesystem",
    "VolumePutFiles2",
    "VolumeRemoveFile2",
    "SecretGetOrCreate",
    "SecretUpdate",
    "SecretDelete",
    "ImageGetOrCreate",
    "ImagePublish",
)


@dataclass
class Fault:
    """times: None means for ever, at `rate`. after: so many calls go by unharmed first. kind:

    exhausted, throttled   the rate limit, without and with a policy by which the client repeats the call
    unavailable            nothing happens        lost_answer   it happens, and the caller does not hear of it
    slow, late             before it happens, and after it: `delay_s`
    """

    method: str
    kind: str
    times: int | None = 1
    rate: float = 1.0
    delay_s: float = 0.0
    after: int = 0
    happened: int = 0

    def strikes(self, method: str) -> bool:
        meant = method in MUTATING if self.method == "*" else method == self.method
        if not meant or (self.times is not None and self.happened >= self.times) or random.random() >= self.rate:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.happened += 1
        return True


@dataclass
class Faults:
    orders: list[Fault] = field(default_factory=list[Fault])

    def of(self, method: str) -> set[str]:
        """The kinds that strike this call now."""
        return {fault.kind for fault in self.orders if fault.kind not in ("slow", "late") and fault.strikes(method)}

    async def delay(self, method: str, kind: str) -> None:
        for fault in self.orders:
            if fault.kind == kind and fault.strikes(method):
                await asyncio.sleep(fault.delay_s)


def exhausted(retry_after_s: float | None = None) -> GRPCError:
    """With a policy the client waits and calls again by itself; without one it gives up at once."""
    details = None if retry_after_s is None else [api_pb2.RPCRetryPolicy(retry_after_secs=retry_after_s)]
    return GRPCError(Status.RESOURCE_EXHAUSTED, "rate limit exceeded", details)


def unavailable() -> GRPCError:
    return GRPCError(Status.UNAVAILABLE, "ordered: unavailable")


class DetailsCodec(StatusDetailsCodecBase):
    """Status details as the client reads them."""

    def encode(self, status: Status, message: str | None, details: list[api_pb2.RPCRetryPolicy] | None) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        packed: list[any_pb2.Any] = []
        for detail in details or []:
            one = any_pb2.Any()
            one.Pack(detail)
            packed.append(one)
        return api_pb2.RPCStatus(code=status.value, message=message or "", details=packed).SerializeToString()

    def decode(self, status: Status, message: str | None, data: bytes) -> None:
        raise NotImplementedError
