"""One suite, every backend: a harness gives a backend, and evidence about it from outside the backend."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.modal_loopback import LoopbackModal, backend
from support.places import groups_named

from eval_pipeline.sandbox.base import Backend, Sandbox
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.sandbox.local.places import prepare
from eval_pipeline.settings import load_settings


@dataclass(frozen=True)
class Harness:
    """make: a backend for an installation. source: Python that defines `make(installation)` in another process.

    kill: end a sandbox behind the backend's back. leftovers: what still exists of any sandbox, empty when nothing does.
    build_tags: what marks a sandbox that will become a layer. storage: where the backend keeps files on this host.
    content: what a layer's ref stands for, as directories, lowest first.
    """

    make: Callable[[str], Backend]
    source: str
    world: Path
    kill: Callable[[Sandbox], None]
    leftovers: Callable[[], list[str]]
    build_tags: dict[str, str]
    storage: tuple[Path, ...]
    content: Callable[[str], list[Path]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["local", "modal"])
def harness(request: pytest.FixtureRequest, state_dir: Path) -> Generator[Harness]:
    world = state_dir / "world"
    world.mkdir(mode=0o755)
    (world / "contract.txt").write_text("the matter")
    (world / "contract.txt").chmod(0o644)
    made = (
        _local(state_dir, world)
        if request.param == "local"
        else _modal(state_dir, world, request.getfixturevalue("modal_server"))
    )
    yield made
    _end_all(made)


def _end_all(harness: Harness) -> None:
    async def end() -> None:
        backend = harness.make("cleaner")
        for info in await backend.list():
            sandbox = await backend.find(info.name)
            assert sandbox is not None
            await sandbox.terminate()
        await backend.aclose()

    asyncio.run(end())
    assert harness.leftovers() == []


def _local(state_dir: Path, world: Path) -> Harness:
    places = prepare(state_dir)

    def kill(sandbox: Sandbox) -> None:
        status = (places.scratch / sandbox.name / "status").read_text().splitlines()[0]
        os.kill(json.loads(status)["child-pid"], signal.SIGKILL)

    def leftovers() -> list[str]:
        found = [str(path) for root in {places.scratch, places.builds} if root.exists() for path in root.iterdir()]
        found += [str(places.scratch)] if places.scratch_is_memory and places.scratch.exists() else []
        found += [
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if places.tag in line or str(places.builds) in line
        ]
        found += [str(path) for path in groups_named(f"evals-{places.tag}-*")]
        return found + [line for line in process_lines() if str(places.scratch) in line or str(places.builds) in line]

    source = "from pathlib import Path\nfrom eval_pipeline.sandbox.local.backend import LocalBackend\n"
    unsafe = load_settings().unsafe_no_isolation  # tests/sandbox runs the suite so where no user namespace can be made
    source += f"def make(installation):\n    return LocalBackend(installation, Path({str(state_dir)!r}), unsafe={unsafe})\n"
    return Harness(
        make=lambda installation: LocalBackend(installation, state_dir, unsafe=unsafe),
        source=source,
        world=world,
        kill=kill,
        leftovers=leftovers,
        build_tags={"purpose": "build"},
        storage=(state_dir, places.scratch),
        content=lambda ref: [Path(ref)],
    )


def _modal(state_dir: Path, world: Path, server: LoopbackModal) -> Harness:
    app = f"t-{secrets.token_hex(6)}"
    source = "import sys\nfrom pathlib import Path\n"
    source += f"sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})\n"
    source += "from support.modal_loopback import backend\n"
    source += f"def make(installation):\n    return backend(installation, {app!r}, Path({str(state_dir)!r}))\n"

    def leftovers() -> list[str]:
        return [one["name"] for one in server.sandboxes(app) if one["alive"] or one["folder"]]

    return Harness(
        make=lambda installation: backend(installation, app, state_dir),
        source=source,
        world=world,
        kill=lambda sandbox: server.lose(sandbox.name),
        leftovers=leftovers,
        build_tags={"purpose": "build"},
        storage=(state_dir,),
        content=lambda ref: [Path(path) for path in server.state()["images"][ref]],
    )


def process_lines() -> list[str]:
    """The command line of every process of this machine."""
    lines: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
