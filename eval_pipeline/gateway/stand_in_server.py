"""The model stand-in behind HTTP, in the form chat clients speak."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from eval_pipeline.gateway.stand_in import respond


async def _complete(request: Request) -> JSONResponse:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        return JSONResponse({"error": {"message": f"the body is no JSON: {error}", "type": "invalid_request_error"}}, 400)
    if not isinstance(body, dict):
        return JSONResponse({"error": {"message": "the body is no object", "type": "invalid_request_error"}}, 400)
    reply = respond(body)
    await asyncio.sleep(reply.delay_s)
    return JSONResponse(reply.payload, reply.status)


async def _models(_: Request) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [{"id": "stand-in", "object": "model", "owned_by": "evals"}]})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """The process has its own signal handlers."""
        yield


class StandInServer:
    """Serves on a loopback port of its own until `close`."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        routes = [Route("/v1/chat/completions", _complete, methods=["POST"]), Route("/v1/models", _models)]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, log_level="warning", access_log=False, lifespan="off")
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    @property
    def endpoint(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    async def close(self) -> None:
        self._server.should_exit = True
        await self._task
