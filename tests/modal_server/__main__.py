"""`python -m modal_server FOLDER`: serve on loopback until stdin ends; the first line of stdout says where."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from aiohttp import web
from grpclib.server import Server
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase
from modal_server.control import Control
from modal_server.faults import DetailsCodec, Fault, Faults
from modal_server.images import Images
from modal_server.router import Router
from modal_server.rpc import Exposed
from modal_server.volumes import BLOCK, Volumes

from eval_pipeline.sandbox.local.places import prepare


class Loopback:
    """The server, and beside it over HTTP: the volumes' blocks, and what a test orders and looks up."""

    def __init__(self, folder: Path, programs: Path | None) -> None:
        self.orders = Faults()
        self.volumes = Volumes(folder / "volumes")
        images = Images(folder / "images", prepare(folder / "host"), programs)
        self.control = Control(folder / "sandboxes", images, self.volumes, self.orders)
        self.exposed = [
            Exposed(ModalClientBase, self.control, self.orders),
            Exposed(TaskCommandRouterBase, Router(self.control), self.orders),
        ]

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2 * BLOCK)
        app.add_routes(
            [
                web.put("/blocks/{digest}", self._put_block),
                web.get("/blocks/{digest}", self._get_block),
                web.post("/faults", self._order),
                web.post("/lose", self._lose),
                web.post("/expire", self._expire),
                web.get("/state", self._state),
            ]
        )
        return app

    async def _put_block(self, request: web.Request) -> web.Response:
        self.volumes.store_block(request.match_info["digest"], await request.read())
        return web.Response(body=request.match_info["digest"].encode())

    async def _get_block(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(self.volumes.block_folder / request.match_info["digest"])

    async def _order(self, request: web.Request) -> web.Response:
        self.orders.orders[:] = [Fault(**order) for order in await request.json()]
        return web.Response()

    async def _lose(self, request: web.Request) -> web.Response:
        """The worker dies with everything on it."""
        found = [one for one in self.control.sandboxes.values() if one.name == (await request.json())["name"]]
        for one in found:
            await one.machine.kill(api_pb2.GenericResult.GENERIC_STATUS_INTERNAL_FAILURE)
        return web.Response()

    async def _expire(self, request: web.Request) -> web.Response:
        self.control.images.known.pop((await request.json())["image_id"])
        return web.Response()

    async def _state(self, _: web.Request) -> web.Response:
        sandboxes = [
            {
                "id": one.id,
                "name": one.name,
                "app": one.app_id,
                "tags": one.tags,
                "alive": one.machine.result is None,
                "folder": str(one.machine.folder) if one.machine.folder.exists() else None,
                "runtime": one.definition.runtime,
                "timeout_s": one.definition.timeout_secs,
                "milli_cpu": one.definition.resources.milli_cpu,
                "memory_mib": one.definition.resources.memory_mb,
                "regions": list(one.definition.scheduler_placement.regions),
                "network": one.definition.network_access.network_access_type,
                "domains": list(one.definition.network_access.allowed_domains),
                "created_at": one.created_at,
            }
            for one in self.control.sandboxes.values()
        ]
        calls: dict[str, int] = {}
        for exposed in self.exposed:
            calls |= exposed.calls
        happened: list[dict[str, Any]] = [
            {"method": fault.method, "kind": fault.kind, "happened": fault.happened} for fault in self.orders.orders
        ]
        blocks = self.volumes.puts
        return web.json_response(
            {
                "sandboxes": sandboxes,
                "calls": calls,
                "faults": happened,
                "block_puts": blocks,
                "apps": {name: app_id for (_, name), app_id in self.control.apps.items()},
                "image_names": self.control.images.names,
                "pulled": self.control.images.registries(),
                "secrets": {known["name"]: known["values"] for known in self.control.secrets.values() if known["name"]},
                "images": {name: [str(path) for path in one.layers] for name, one in self.control.images.known.items()},
            }
        )


async def serve(folder: Path, programs: Path | None) -> None:
    loopback = Loopback(folder, programs)
    runner = web.AppRunner(loopback.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    admin_port = site._server.sockets[0].getsockname()[1]  # pyright: ignore
    loopback.volumes.url = f"http://127.0.0.1:{admin_port}"
    server = Server(loopback.exposed, status_details_codec=DetailsCodec())  # pyright: ignore[reportArgumentType]
    await server.start("127.0.0.1", 0, backlog=4096)
    port = server._server.sockets[0].getsockname()[1]  # pyright: ignore
    loopback.control.url = f"http://127.0.0.1:{port}"
    print(json.dumps({"url": loopback.control.url, "admin": loopback.volumes.url}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await loopback.control.close()
    server.close()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=Path, help="A tree whose /usr holds a container engine, for virtual machines.")
    told = parser.parse_args()
    if sys.version_info < (3, 12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asyncio.set_child_watcher(asyncio.PidfdChildWatcher())  # one thread a process would be too many
    asyncio.run(serve(told.folder, told.programs))


if __name__ == "__main__":
    main()
