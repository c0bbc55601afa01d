"""Plain coroutines as gRPC handlers: faults, idempotency keys, and `unimplemented` for whatever a service does not answer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from modal_server import faults


class Exposed:
    """`service` answers the methods it has: `async def Name(request)`, an async generator, or `async def Name(stream)`.

    A call repeated with its idempotency key gets the first answer again; nothing happens twice.
    """

    def __init__(self, base: type, service: Any, orders: faults.Faults) -> None:
        self._service = service
        self._orders = orders
        self._answers: dict[tuple[str, str], Any] = {}
        self.calls: dict[str, int] = {}
        names = getattr(base, "__abstractmethods__", ())
        template = type("Template", (base,), {name: _unimplemented for name in names})()
        self._mapping: dict[str, Handler] = {path: self._wrap(path, known) for path, known in template.__mapping__().items()}

    def __mapping__(self) -> Mapping[str, Handler]:
        return self._mapping

    def _wrap(self, path: str, known: Handler) -> Handler:
        name = path.rpartition("/")[2]
        method = getattr(self._service, name, None)
        if method is None:
            return known
        if known.cardinality is Cardinality.UNARY_UNARY:
            handler = self._unary(name, method)
        elif known.cardinality is Cardinality.UNARY_STREAM:
            handler = self._streaming(name, method)
        else:
            handler = self._taking_stream(name, method)
        return known._replace(func=handler)

    def _unary(self, name: str, method: Any) -> Any:
        takes_metadata = len(inspect.signature(method).parameters) > 1

        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            self.calls[name] = self.calls.get(name, 0) + 1
            kinds = await self._before(name)
            key = (name, str(stream.metadata.get("x-idempotency-key", "")))
            answer = self._answers.get(key) if key[1] else None
            if answer is None:
                answer = await (method(request, stream.metadata) if takes_metadata else method(request))
                if key[1] and name in faults.MUTATING:
                    self._answers[key] = answer
            await self._orders.delay(name, "late")
            if "lost_answer" in kinds:
                raise faults.unavailable()
            await stream.send_message(answer)

        return handle

    def _streaming(self, name: str, method: Any) -> Any:
        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            await self._before(name)
            sent = False
            async for item in method(request):
                await stream.send_message(item)
                sent = True
            if not sent:
                await stream.send_initial_metadata()

        return handle

    def _taking_stream(self, name: str, method: Any) -> Any:
        async def handle(stream: Any) -> None:
            await self._before(name)
            await stream.send_message(await method(stream))

        return handle

    async def _before(self, name: str) -> set[str]:
        await self._orders.delay(name, "slow")
        kinds = self._orders.of(name)
        if "exhausted" in kinds:
            raise faults.exhausted()
        if "throttled" in kinds:
            raise faults.exhausted(retry_after_s=0.1)
        if "unavailable" in kinds:
            raise faults.unavailable()
        return kinds


async def _unimplemented(self: Any, stream: Any) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "this server does not answer that method")
