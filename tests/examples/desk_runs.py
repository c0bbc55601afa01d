"""The desk in real sandboxes of this machine, with a scripted model at the other end of the sandbox's proxy port."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.gateway.listener import ListenerMaker
from eval_pipeline.gateway.stand_in import Reply, respond
from eval_pipeline.sandbox.base import CommandState, Phase, Resources, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import Egress, LocalBackend
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

APP = Path(__file__).parents[2] / "examples" / "matter_desk"
INSTALLATION = "desk-tests"


@dataclass
class Endpoint:
    """An HTTP proxy that answers every POST itself.

    script: replies and headers to give before the stand-in is asked. asked: what was sent, URL and body. keys: Authorization headers.
    """

    script: list[tuple[Reply, dict[str, str]]] = field(default_factory=list[tuple[Reply, dict[str, str]]])
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    keys: list[str | None] = field(default_factory=list[str | None])

    def handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append((self.path, body))
                endpoint.keys.append(self.headers["Authorization"])
                reply, headers = endpoint.script.pop(0) if endpoint.script else (respond(body), {})
                data = json.dumps(reply.payload).encode()
                self.send_response(reply.status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@dataclass(frozen=True)
class Done:
    exit_code: int
    out: str
    err: str


@dataclass(frozen=True)
class Run:
    exit_code: int
    result: dict[str, Any]
    events: list[dict[str, Any]]
    files: dict[str, bytes]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


class Machine:
    """Sandboxes below `state_dir`, with the app as it lies in the work tree: its image layer, and a layer for each world."""

    def __init__(self, state_dir: Path) -> None:
        self._maker = ListenerMaker()
        self._runner = asyncio.Runner()
        self._servers: dict[str, tuple[ThreadingHTTPServer, Thread]] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._prepared: dict[Path, tuple[str, ...]] = {}
        self.manifest = parse_model(YamlFile(APP / "evals.app.yaml"), AppManifest)
        self._backend = LocalBackend(INSTALLATION, state_dir, Egress(admit=self._admit, release=self._release))
        self._image: tuple[str, ...] | None = None

    def close(self) -> None:
        self._runner.close()
        self._maker.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    @property
    def image(self) -> tuple[str, ...]:
        """Base and app, built."""
        if self._image is None:
            lock = (APP / "requirements.lock").read_bytes()
            base = self.do(self._backend.base_layer(requirements=lock))
            assert self.manifest.build is not None
            unpack = ("/bin/sh", "-c", "mkdir /app && tar -xf /run/evals/app.tar -C /app")
            self._image = self._build(
                (base,), [(unpack, "/"), (self.manifest.build, "/app")], files={"/run/evals/app.tar": tar(APP)}
            )
        return self._image

    def prepared(self, world: Path) -> tuple[str, ...]:
        """The layers with `world` restored. Raises AssertionError with the log when that fails."""
        if world not in self._prepared:
            assert self.manifest.restore is not None
            self._prepared[world] = self._build(self.image, [(self.manifest.restore, "/app")], world=world)
        return self._prepared[world]

    def _build(self, layers: tuple[str, ...], commands: Sequence[tuple[Sequence[str], str]], **more: Any) -> tuple[str, ...]:
        with self.sandbox(layers, tags={"purpose": "build"}, **more) as sandbox:
            for argv, workdir in commands:
                done = sandbox.run(*argv, workdir=workdir)
                assert done.exit_code == 0, done.err
            return (*layers, self.do(self._backend.commit(sandbox.inner, f"k-{secrets.token_hex(12)}")))

    @contextmanager
    def sandbox(self, layers: tuple[str, ...], *, endpoint: Endpoint | None = None, **more: Any) -> Generator[Cell]:
        name = f"e-{secrets.token_hex(12)}"
        if endpoint is not None:
            self._endpoints[name] = endpoint
        spec = SandboxSpec(
            name=name,
            installation=INSTALLATION,
            layers=layers,
            egress=self.manifest.egress if endpoint is not None else (),
            resources=Resources(**self.manifest.resources.model_dump()),
            **more,
        )
        sandbox = self.do(self._backend.get_or_create(spec))
        try:
            yield Cell(self, sandbox)
        finally:
            self.do(sandbox.terminate())

    @contextmanager
    def desk(self, world: Path, *, endpoint: Endpoint | None = None, **more: Any) -> Generator[Cell]:
        """A sandbox with the world restored and the services ready."""
        with self.sandbox(self.prepared(world), world=world, endpoint=endpoint, **more) as cell:
            cell.up()
            yield cell

    async def _admit(self, name: str, pid: int, endpoints: Sequence[str], local: Sequence[str]) -> None:
        namespace = Path(f"/proc/{pid}/ns/net").stat().st_ino
        server = ThreadingHTTPServer(("", 0), self._endpoints[name].handler(), bind_and_activate=False)
        server.socket.close()
        server.socket = self._maker.listen(pid, namespace)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self._servers[name] = server, thread

    async def _release(self, name: str) -> None:
        if (served := self._servers.pop(name, None)) is not None:
            server, thread = served
            server.shutdown()
            thread.join()
            server.server_close()


class Cell:
    """One sandbox of the desk."""

    def __init__(self, machine: Machine, inner: Sandbox) -> None:
        self._machine = machine
        self.inner = inner
        self._commands = 0
        self._tokens: dict[str | None, str] = {}

    def start(self, *argv: str, env: Mapping[str, str] | None = None, workdir: str = "/app", secrets: bool = False) -> str:
        """The command's id."""
        self._commands += 1
        command = f"c{self._commands}"
        self._machine.do(self.inner.start(command, list(argv), env=env or {}, workdir=workdir, with_secrets=secrets))
        return command

    def wait(self, command: str, timeout_s: float = 120.0) -> Done:
        async def poll() -> CommandState:
            for _ in range(int(timeout_s / 0.01)):
                if (state := await self.inner.state(command)).phase is not Phase.RUNNING:
                    return state
                await asyncio.sleep(0.01)
            raise AssertionError(f"{command} has not ended after {timeout_s} s: {await self.inner.logs(command)}")

        state = self._machine.do(poll())
        out, err = self._machine.do(self.inner.logs(command, 2**20))
        assert state.phase is Phase.EXITED and state.exit_code is not None, state
        return Done(state.exit_code, out.decode(errors="replace"), err.decode(errors="replace"))

    def run(self, *argv: str, **more: Any) -> Done:
        return self.wait(self.start(*argv, **more))

    def python(self, source: str, *argv: str, **more: Any) -> str:
        """What a program prints that has the app's modules and wheels."""
        done = self.run("python3", "-c", source, *argv, **more)
        assert done.exit_code == 0, done.err
        return done.out

    def up(self, *, secrets: bool = False) -> str:
        """Start the services; the command's id once they are ready."""
        self._tokens.clear()
        services = self._machine.manifest.services
        assert services is not None and services.up is not None and services.ready is not None
        command = self.start(*services.up, secrets=secrets)
        ready = self.run(*services.ready)
        assert ready.exit_code == 0, (ready, self._machine.do(self.inner.logs(command)))
        return command

    def sql(self, query: str) -> list[list[Any]]:
        source = "import json, sys; from matter_desk.postgres import connect; c = connect().cursor(); c.execute(sys.argv[1])"
        return json.loads(self.python(source + "; print(json.dumps(c.fetchall(), default=str))", query))

    def execute(self, statement: str) -> None:
        source = "import sys; from matter_desk import postgres as p\nwith p.transaction(p.connect()) as c: c.execute(sys.argv[1])"
        self.python(source, statement)

    def texts(self) -> dict[str, str]:
        """What the desk knows of every document."""
        return {path: text for path, text in self.sql("SELECT path, text FROM documents")}

    def processes(self) -> dict[int, str]:
        """Those in the sandbox other than its runner and this question: pid -> command line."""
        return {int(pid): line for pid, line in json.loads(self.python(_PROCESSES)).items()}

    def http(
        self, method: str, url: str, body: Any = None, *, user: str | None = None, token: str | None = None
    ) -> tuple[int, Any]:
        """Status and answer of the document service; `user` None is the agent's own session."""
        if token is None:
            token = self.token(user)
        text = self.python(_ASK, method, url, "" if body is None else json.dumps(body), token)
        status, answer = json.loads(text)
        return status, answer

    def token(self, user: str | None = None) -> str:
        """A session of the user's; None: the agent's own."""
        if user not in self._tokens:
            done = self.run("bin/session", user) if user else self.run("cat", "/srv/matter_desk/run/session")
            self._tokens[user] = done.out.strip()
        return self._tokens[user]

    def agent(
        self,
        prompt: str,
        *,
        config: Mapping[str, Any] | None = None,
        command: Sequence[str] = ("bin/agent",),
        **case: Any,
    ) -> Run:
        """One run of the agent; `case` overrides fields of the case file."""
        full: dict[str, Any] = {
            "prompt": prompt,
            "config": {"model": "stand-in", "temperature": 0} | dict(config or {}),
            "trial": 0,
            "seed": 1,
            "limits": {"wall_s": 60.0, "cost_usd": None, "turns": 12},
            "deliverables": list[str](),
            "world": "/world",
            "output": "/out",
        } | case
        self._machine.do(self.inner.write("/out/case.json", json.dumps(full).encode()))
        agent = self.start(*command, env={"EVALS_CASE": "/out/case.json"}, secrets=True)
        done = self.wait(agent)
        out = self.out()
        assert "result.json" in out, done.err
        events = [json.loads(line) for line in out["transcript.jsonl"].decode().splitlines()]
        files = {name.removeprefix("files/"): data for name, data in out.items() if name.startswith("files/")}
        return Run(done.exit_code, json.loads(out["result.json"]), events, files)

    def out(self) -> dict[str, bytes]:
        """The regular files below /out."""
        packed = self.python(_PACK)
        return {name: bytes.fromhex(data) for name, data in json.loads(packed).items()}

    def dump(self) -> dict[str, bytes | str]:
        """What the dump wrote below /out/state: bytes of a file, the target of a link, None for a folder."""
        assert self._machine.manifest.dump is not None
        done = self.run(*self._machine.manifest.dump)
        assert done.exit_code == 0, done.err
        found = json.loads(self.python(_PACK_STATE))
        return {name: bytes.fromhex(value[1]) if value[0] == "file" else value[1] for name, value in found.items()}


_PROCESSES = """
import json, os
found = {}
for pid in os.listdir("/proc"):
    if pid.isdecimal() and int(pid) not in (1, os.getpid()):
        try:
            line = open(f"/proc/{pid}/cmdline").read().replace(chr(0), " ").strip()
            state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found[pid] = line
print(json.dumps(found))
"""

_ASK = """
import http.client, json, sys
method, url, body, token = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", 8400)
connection.request(method, url, body or None, {"Authorization": "Bearer " + token})
answer = connection.getresponse()
data = answer.read()
print(json.dumps([answer.status, json.loads(data) if answer.getheader("Content-Type") == "application/json" else data.hex()]))
"""

_PACK = """
import json, os
found = {}
for folder, _, names in os.walk("/out"):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path) and not path.startswith("/out/state/"):
            found[os.path.relpath(path, "/out")] = open(path, "rb").read().hex()
print(json.dumps(found))
"""

_PACK_STATE = """
import json, os
found = {}
for folder, folders, names in os.walk("/out/state"):
    for name in folders + names:
        path = os.path.join(folder, name)
        place = os.path.relpath(path, "/out/state")
        if os.path.islink(path):
            found[place] = ["link", os.readlink(path)]
        elif os.path.isdir(path):
            found[place] = ["folder", None]
        else:
            found[place] = ["file", open(path, "rb").read().hex()]
print(json.dumps(found))
"""


def said(reply_content: str, **more: Any) -> tuple[Reply, dict[str, str]]:
    message = {"role": "assistant", "content": reply_content} | more
    usage = {"prompt_tokens": 100, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 30}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 25}
    return Reply(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}, 0), {}


def calling(name: str, **arguments: Any) -> tuple[Reply, dict[str, str]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return said("", tool_calls=[call])


def tool_results(run: Run) -> list[dict[str, Any]]:
    return [json.loads(event["content"]) for event in run.of("tool_result")]


def copied(world: Path) -> Path:
    """A world beside it, to be changed."""
    target = Path(tempfile.mkdtemp(dir=world.parent))
    target.chmod(0o755)
    shutil.copytree(world, target, dirs_exist_ok=True)
    return target


def tar(folder: Path) -> bytes:
    """What a checkout of the folder holds: no byte code."""
    buffer = io.BytesIO()
    names = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "-co", "--exclude-standard", "."], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names:
            if (folder / name).exists():
                archive.add(folder / name, name)
    return buffer.getvalue()
