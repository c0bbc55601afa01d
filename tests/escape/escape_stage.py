"""A sandbox in which everything is tried, another one beside it, and the machine below them: as each backend makes them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escape import escape_inside
from escape.escape_table import PLATFORM, Row, Verdict
from support.modal_loopback import LoopbackModal
from support.modal_loopback import backend as modal_backend

from eval_pipeline.sandbox.base import Backend, Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.sandbox.local.places import prepare

INSIDE = "/run/evals/inside.py"
PYTHON = "/usr/bin/python3"
SYSCTLS = ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory")
_NUMBERS = {"shm_key": 0x0E5CA9E, "neighbour_port": 4545}


@dataclass(frozen=True)
class Kind:
    """One backend. home: where the files of a sandbox lie on this machine. layer: the directory that a ref stands for.

    journal: the records of a command, in the sandbox's home; shown: whether its walls are ours.
    """

    name: str
    backend: Backend
    home: Callable[[Sandbox], Path]
    out: Callable[[Sandbox], Path]
    journal: Callable[[Sandbox, str], Path]
    layer: Callable[[str], Path]
    walls_are_ours: bool


@dataclass(frozen=True)
class Stage:
    kind: Kind
    folder: Path
    sandbox: Sandbox
    neighbour: Sandbox
    layer: Path
    words: Mapping[str, Any]


def local_kind(folder: Path) -> Kind:
    places = prepare(folder)

    def home(sandbox: Sandbox) -> Path:
        return places.scratch / sandbox.name

    return Kind(
        "local",
        LocalBackend("escape", folder),
        home,
        lambda sandbox: home(sandbox) / "disk" / "out",
        lambda sandbox, _: home(sandbox) / "journal",
        Path,
        True,
    )


def modal_kind(folder: Path, server: LoopbackModal, app: str) -> Kind:
    def home(sandbox: Sandbox) -> Path:
        (found,) = [one["folder"] for one in server.sandboxes(app) if one["name"] == sandbox.name]
        return Path(found) / "upper"

    return Kind(
        "modal",
        modal_backend("escape", app, folder),
        home,
        lambda sandbox: home(sandbox) / "out",
        lambda sandbox, command_id: home(sandbox) / "run" / "evals" / "logs" / f"{command_id}.journal",
        lambda ref: Path(server.state()["images"][ref][-1]),
        False,
    )


async def ended(sandbox: Sandbox, command_id: str, timeout_s: float = 120) -> int | None:
    """None: it was lost."""
    async with asyncio.timeout(timeout_s):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.02)
    return state.exit_code


async def run(sandbox: Sandbox, *argv: str, with_secrets: bool = False) -> tuple[int | None, str, str]:
    command_id = f"c{secrets.token_hex(4)}"
    await sandbox.start(command_id, argv, env={}, workdir="/out", with_secrets=with_secrets)
    code = await ended(sandbox, command_id)
    stdout, stderr = await sandbox.logs(command_id)
    return code, stdout.decode(errors="replace"), stderr.decode(errors="replace")


def _spec(**more: Any) -> SandboxSpec:
    files = {INSIDE: Path(escape_inside.__file__).read_bytes()}
    return SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="escape", files=files, **more)


@asynccontextmanager
async def stage(kind: Kind, folder: Path) -> AsyncGenerator[Stage]:
    world = folder / "world"
    world.mkdir(mode=0o755)
    for name in ("contract.txt", "b.txt", "linked.txt"):
        (world / name).write_text("the matter")
    words = {f"{name}_word": f"{name}-{secrets.token_hex(16)}" for name in ("host", "neighbour")}
    words |= {"neighbour_mark": f"mark-{secrets.token_hex(8)}", "secret": f"secret-{secrets.token_hex(16)}"}
    (folder / "host.txt").write_text(words["host_word"])
    (folder / "host.txt").chmod(0o644)
    builder = await kind.backend.get_or_create(_spec(tags={"purpose": "build"}))
    await run(builder, "sh", "-c", "mkdir -p /app && echo sealed >/app/agent")
    layer = await kind.backend.commit(builder, f"app-{secrets.token_hex(4)}")
    neighbour = await kind.backend.get_or_create(_spec())
    given = json.dumps({**words, **_NUMBERS})
    await neighbour.start("neighbour", [PYTHON, INSIDE, "neighbour", given], env={}, workdir="/out")
    async with asyncio.timeout(60):
        while not await neighbour.read("/out/ready", 100):
            await asyncio.sleep(0.05)
    sandbox = await kind.backend.get_or_create(_spec(layers=[layer], world=world, secrets={"KEY": words["secret"]}))
    try:
        yield Stage(kind, folder, sandbox, neighbour, kind.layer(layer), {**words, **_NUMBERS})
    finally:
        for one in (sandbox, neighbour):
            await one.terminate()
        await kind.backend.aclose()


def tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(f"{path.relative_to(root)} {path.lstat().st_mode}".encode() + content)
    return digest.hexdigest()


@contextmanager
def helpers(count: int, environ: Mapping[str, str]) -> Generator[list[subprocess.Popen[bytes]]]:
    """Processes of this machine that may be looked into and ended."""
    made = [
        subprocess.Popen(["/bin/sleep", "1000"], env=dict(environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        yield made
    finally:
        for process in made:
            process.kill()
            process.wait()


@contextmanager
def host_words(made: Stage) -> Generator[tuple[dict[str, Any], dict[str, Any]]]:
    """The words for the sandbox, and those for the same attempts on the machine, where each of them must succeed."""
    folder = made.folder
    free = folder / "free"
    free.mkdir()
    shutil.copytree(folder / "world", free / "world")
    shutil.copytree(made.layer / "app", free / "app")
    for name in ("run", "state", "mount"):
        (free / name).mkdir()
    (free / "run" / "note").write_text(made.words["secret"])
    paths = [folder / "state-socket", *(free / "state" / name for name in ("secrets.env", "gateway.sock"))]
    common = {
        **{name: value for name, value in made.words.items() if name != "secret"},
        "secret_reversed": made.words["secret"][::-1],
        "host_file": str(folder / "host.txt"),
        "neighbour_file": str(made.kind.out(made.neighbour) / "secret"),
        "state_paths": [*map(str, paths), "/var/run/docker.sock", "/run/dbus/system_bus_socket"],
        "forged_id": "forged",
    }
    with socket.socket(socket.AF_UNIX) as listener, helpers(4, {"SECRET": made.words["secret"]}) as victims:
        listener.bind(str(folder / "state-socket"))
        listener.listen()
        # All but the first end in the control, the last one if a sandbox gets at it
        pids = [victim.pid for victim in victims]
        inside = {
            "pid1": 1,
            "mortal": 1,
            "victim": pids[3],
            "run_dir": "/run/evals",
            "mounted": "/world",
            "scratch": "/tmp",
            "mount_at": "/tmp",
        }
        inside |= {
            "world": "/world",
            "app": "/app",
            "journals": ["/run/evals/logs/forged.journal", "/run/evals/journal", "/proc/1/fd/1"],
        }
        outside = {"pid1": pids[0], "mortal": pids[1], "victim": pids[2], "run_dir": str(free / "run"), "mounted": "/proc"}
        outside |= {
            "world": str(free / "world"),
            "app": str(free / "app"),
            "scratch": str(free),
            "mount_at": str(free / "mount"),
            "only": ["host"],
        }
        outside |= {"journals": []}
        yield common | inside, common | outside


def on_the_machine(words: Mapping[str, Any]) -> dict[str, str]:
    """Where nothing holds them: with the machine's rights, in name spaces that go with the process."""
    own = [
        "unshare",
        *([] if os.getuid() == 0 else ["--user", "--map-root-user"]),
        "--mount",
        "--uts",
        "--propagation",
        "private",
    ]
    command = [*own, PYTHON, escape_inside.__file__, json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def attempts(made: Stage) -> list[Row]:
    """Every one of `escape_inside`, with the machine looked at before and after."""
    sysctls = [Path(path).read_text() for path in SYSCTLS]
    kept = {"world": tree_digest(made.folder / "world"), "layer": tree_digest(made.layer)}
    with host_words(made) as (words, free):
        await run(made.sandbox, "sh", "-c", 'test -n "$KEY"', with_secrets=True)
        await made.sandbox.start("forged", ["sh", "-c", "sleep 1000"], env={}, workdir="/out")
        code, said, errors = await run(made.sandbox, PYTHON, INSIDE, json.dumps(words))
        assert code == 0, (code, errors)
        found: dict[str, str] = json.loads(said)
        _, said, errors = await run(made.neighbour, PYTHON, INSIDE, json.dumps({**words, "only": ["neighbour"]}))
        assert said, errors
        control = {**json.loads(said), **on_the_machine(free)}
        lives = Path(f"/proc/{words['victim']}").exists() and await made.neighbour.alive() and await made.sandbox.alive()
        told = {
            "host": _if((made.folder / "host.txt").read_text() == made.words["host_word"], "the file is as it was"),
            "neighbour": _if(lives, "both sandboxes and the other process live"),
            "runner": _if(
                (await run(made.sandbox, "sh", "-c", "exit 7"))[0] == 7, "the runner takes commands, and tells their ends"
            ),
            "kernel": _if([Path(path).read_text() for path in SYSCTLS] == sysctls, "the sysctls are as they were"),
            "world": _if(
                kept == {"world": tree_digest(made.folder / "world"), "layer": tree_digest(made.layer)},
                "digests are as they were",
            ),
        }
        free_app = tree_digest(made.folder / "free" / "app")
        forged = await _forged(made)
    rows = [_row(one, made.kind, found[one.what], told[one.area], control.get(one.what, "")) for one in escape_inside.ATTEMPTS]
    assert free_app != tree_digest(made.layer / "app"), "where it is no copy the layer is changed"
    return [forged if row.what == forged.what else row for row in rows]


def _if(held: bool, words: str) -> str:
    return words if held else f"OUT it is not so: {words}"


async def _forged(made: Stage) -> Row:
    """A line that the sandbox wrote changes no state; the same line where only the host can write does."""
    (one,) = [one for one in escape_inside.ATTEMPTS if one.what.startswith("a record of an exit")]
    running = (await made.sandbox.state("forged")).phase
    with made.kind.journal(made.sandbox, "forged").open("ab") as journal:
        journal.write(b"forged exited 1.0 0\n")
    believed = await made.sandbox.state("forged")
    verdict = Verdict.REFUSED if running is Phase.RUNNING else Verdict.OUT
    assert believed.phase is Phase.EXITED, believed
    return Row(one.what, made.kind.name, verdict, f"the command is {running}", "control: the host's own line is believed")


def _row(one: escape_inside.Attempt, kind: Kind, said: str, told: str, control: str) -> Row:
    name, evidence = kind.name, f"{told}; control: {control}"
    assert not said.startswith("BROKEN"), (one.what, said)
    if one.platform and not kind.walls_are_ours:
        return Row(one.what, name, Verdict.NOT_SHOWN, PLATFORM, f"on the loopback server: {said}")
    if told.startswith("OUT") or said.startswith("OUT"):
        return Row(one.what, name, Verdict.OUT, said, evidence)
    if not one.outside and not control.startswith("OUT"):
        return Row(one.what, name, Verdict.NOT_SHOWN, "it fails where nothing holds it, too", f"{said}; {control}")
    return Row(one.what, name, Verdict.REFUSED, said, evidence)
