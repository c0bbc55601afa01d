"""A world with the app up on it: open, its ports led here, closed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import dry_run_option, emit, examples, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.cli.world_leading import led_already, registered
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.sandbox.base import Address, Backend, Sandbox

_PORT = re.compile(r"(?:(?P<here>[1-9][0-9]{0,4}):)?(?P<inside>[1-9][0-9]{0,4})")


@dataclass(frozen=True)
class Port:
    """here: None for the same number if it is free, else any."""

    inside: int
    here: int | None = None


class PortType(click.ParamType):
    name = "[HERE:]INSIDE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Port:
        found = _PORT.fullmatch(str(value))
        if found is None or any(int(number) > 65535 for number in found.groupdict("0").values()):
            self.fail(f"{value!r} is no port: write INSIDE or HERE:INSIDE", param, ctx)
        return Port(int(found["inside"]), None if found["here"] is None else int(found["here"]))


port_option = click.option(
    "--port",
    "ports",
    type=PortType(),
    multiple=True,
    help="Lead this port of the sandbox here; again for more. Default: the app's own.",
)


backend_option = click.option(
    "--backend", type=click.Choice(["local", "modal"]), default="local", show_default=True, help="Where it is open, or shall be."
)


@click.command(
    "open",
    epilog=examples("evals world open harbour-spa   # until Ctrl-C", "evals world open harbour-spa --app-ref WORKTREE --detach"),
)
@click.argument("world")
@click.option("--app-ref", "ref", metavar="REF|WORKTREE", help="The app at this revision; its branch when it is not given.")
@port_option
@backend_option
@click.option("--egress", is_flag=True, help="Let it reach what the app's manifest allows an agent to.")
@click.option("--detach", is_flag=True, help="Return once it is up; `evals world close` ends it.")
@json_option
@with_settings
@starts_sandboxes
def open_world(
    settings: Settings,
    world: str,
    ref: str | None,
    ports: Sequence[Port],
    backend: str,
    egress: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Start the app on a world, in a sandbox, with its ports on this machine's loopback.

    Without --detach until Ctrl-C; the app itself goes on until `evals world close`, so that `evals world save` can keep what it holds.
    """
    from eval_pipeline.cli.launch import require_isolation

    if backend == "local":
        require_isolation(settings)
    data = asyncio.run(_open(settings, world, ref, backend, egress=egress))
    wanted = list(ports) or [Port(number) for number in data["ports"]]
    if detach:
        data |= {"addresses": _detached(settings, world, backend, wanted) if wanted else {}}
        emit(data, as_json, lambda: _show(data))
    else:
        asyncio.run(_lead(settings, world, backend, wanted, data, as_json))


@click.command("ports")
@click.argument("world")
@port_option
@backend_option
@json_option
@with_settings
def lead_ports(settings: Settings, world: str, ports: Sequence[Port], backend: str, as_json: bool) -> None:
    """Lead the ports of an open world to this machine, until Ctrl-C or until it is closed.

    It holds them and does not return before; --json prints the envelope first. Where another process leads them already
    (`evals world open --detach` starts one and returns: that is for scripts), it says where and returns.
    """
    asyncio.run(_lead(settings, world, backend, list(ports), {"world": world}, as_json))


@click.command("close")
@click.argument("world")
@backend_option
@dry_run_option
@json_option
@with_settings
def close_world(settings: Settings, world: str, backend: str, dry_run: bool, as_json: bool) -> None:
    """End the sandbox of an open world. What was not saved is gone."""
    from eval_pipeline.runner.workbench import close_world as closing
    from eval_pipeline.runner.workbench import opened

    where, installation = _backend(settings, backend)
    if dry_run:
        name = asyncio.run(opened(where, installation, world))[0].name
        said = f"{name} would be ended, and {world} closed; what was not saved would be gone"
    else:
        name = asyncio.run(closing(where, installation, world))
        said = f"{world} is closed"
    emit({"world": world, "sandbox": name, "dry_run": dry_run}, as_json, lambda: click.echo(said))


async def _open(settings: Settings, world: str, ref: str | None, backend: str, *, egress: bool) -> dict[str, Any]:
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.runner.workbench import open_world as opening
    from eval_pipeline.runner.workbench import subject
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records, open_services(settings, records) as services:
        at = subject(services, Library(settings.worlds_dir), world, ref, backend)
        note(f"preparing {world} with {at.arm.manifest.name} at {at.arm.ref}")
        sandbox = await opening(services, at, egress=egress)
        ports = at.arm.manifest.services.ports if at.arm.manifest.services else ()
        return {
            "world": world,
            "snapshot": at.world_digest,
            "app": at.arm.manifest.name,
            "commit": at.arm.commit,
            "sandbox": sandbox.name,
            "ports": list(ports),
        }


def _backend(settings: Settings, name: str) -> tuple[Backend, str]:
    """To find what is there, with the installation it acts for."""
    from eval_pipeline.gateway.client import Gateway
    from eval_pipeline.runner.backends import backend_named
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        return backend_named(name, settings, records, Gateway.at(settings.state_dir)), records.ledger.installation_id()


async def _lead(settings: Settings, world: str, where: str, ports: Sequence[Port], data: dict[str, Any], as_json: bool) -> None:
    from eval_pipeline.runner.workbench import opened, wait_until_gone

    backend, installation = _backend(settings, where)
    info, sandbox = await opened(backend, installation, world)
    wanted = ports or [Port(int(number)) for number in info.tags.get("ports", "").split()]
    there = led_already(settings, where, sandbox.name)
    if wanted and all(_leads_to(there.get(str(port.inside)), port) for port in wanted):
        data |= {"addresses": {str(port.inside): there[str(port.inside)] for port in wanted}}
        emit(data, as_json, lambda: _show(data))
        note("another process leads them here already, until the world is closed")
        return
    async with AsyncExitStack() as stack:
        found = {str(port.inside): await stack.enter_async_context(_forwarded(sandbox, port)) for port in wanted}
        data |= {"addresses": {inside: str(address) for inside, address in found.items()}}
        stack.enter_context(registered(settings, where, sandbox.name, data["addresses"]))
        emit(data, as_json, lambda: _show(data))
        sys.stdout.flush()
        interrupted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted.set)
        note("Ctrl-C ends the way in; the app goes on")
        ends = [asyncio.ensure_future(interrupted.wait()), asyncio.ensure_future(wait_until_gone(sandbox))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    if interrupted.is_set():
        at = "" if where == "local" else f" --backend {where}"
        note(
            f"\n{world} is still open: `evals world save {world}{at}` keeps what it holds, `evals world close {world}{at}` ends it"
        )
    else:
        note(f"{world} was closed")


def _leads_to(address: str | None, port: Port) -> bool:
    return address is not None and (port.here is None or address.endswith(f":{port.here}"))


@asynccontextmanager
async def _forwarded(sandbox: Sandbox, port: Port) -> AsyncGenerator[Address]:
    from eval_pipeline.errors import SpecError

    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(sandbox.forward(port.inside, port.here or port.inside))
        except SpecError:
            if port.here is not None:
                raise
            address = await stack.enter_async_context(sandbox.forward(port.inside))
        yield address


def _detached(settings: Settings, world: str, backend: str, ports: Sequence[Port]) -> dict[str, str]:
    """A process of its own that leads the ports here until the world is closed."""
    from eval_pipeline.errors import SandboxError

    log = settings.state_dir / "logs" / f"world-{world}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "eval_pipeline.cli", "world", "ports", world, "--backend", backend, "--json"]
    for port in ports:
        command += ["--port", str(port.inside) if port.here is None else f"{port.here}:{port.inside}"]
    with log.open("ab") as sink:
        leader = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, start_new_session=True, text=True
        )
    assert leader.stdout is not None
    with leader.stdout as said:
        line = said.readline()
    envelope = json.loads(line) if line else {"ok": False, "error": {"message": f"its log: {log}"}}
    if not envelope["ok"]:
        raise SandboxError(f"{world} is up, and its ports can't be led here: {envelope['error']['message']}")
    return envelope["data"]["addresses"]


def _show(data: dict[str, Any]) -> None:
    if "app" in data:
        commit = data["commit"][:12] if data["commit"] else "the working tree"
        click.echo(f"{data['world']} is open: {data['app']} at {commit}, in {data['sandbox']}")
    for inside, address in data["addresses"].items():
        click.echo(f"http://{address}  (port {inside} inside)")
    if not data["addresses"]:
        click.echo("no port is led here: name one with --port, or list `services.ports` in the app's manifest")
