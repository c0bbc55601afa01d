"""Real runs of the desk on this machine: its own scripts, and the stand-in behind a loopback server in the place of the proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from eval_pipeline.gateway.stand_in import Reply, respond

APP = Path(__file__).parents[2] / "examples" / "matter_desk"


@dataclass
class Endpoint:
    """An HTTP proxy that answers every POST itself.

    script: replies and headers to give before the stand-in is asked. asked: what was sent, URL and body. keys: Authorization headers.
    """

    url: str = ""
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


@contextmanager
def serve() -> Generator[Endpoint]:
    endpoint = Endpoint()
    server = ThreadingHTTPServer(("127.0.0.1", 0), endpoint.handler())
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def desk_env(data: Path, **more: str) -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MATTER_DESK_DATA": str(data), **more}


def restore(world: Path, data: Path) -> Path:
    """Load the world; return the data directory."""
    made = subprocess.run([APP / "bin" / "restore", world], env=desk_env(data), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return data


@dataclass(frozen=True)
class Run:
    exit_code: int
    result: dict[str, Any]
    events: list[dict[str, Any]]
    output: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def ask(
    data: Path,
    proxy: str,
    output: Path,
    prompt: str,
    *,
    config: dict[str, Any] | None = None,
    key: str | None = None,
    **case: Any,
) -> Run:
    """One run of the agent; `case` overrides fields of the case file, `key` is the model's API key."""
    output.mkdir(parents=True)
    chosen = {"model": "stand-in", "temperature": 0} | (config or {})
    full: dict[str, Any] = {
        "prompt": prompt,
        "config": chosen,
        "trial": 0,
        "seed": 1,
        "limits": {"wall_s": 60.0, "cost_usd": None, "turns": 12},
        "deliverables": list[str](),
        "world": "/world",
        "output": str(output),
    } | case
    file = output.parent / f"{output.name}.case.json"
    file.write_text(json.dumps(full))
    env = desk_env(data, EVALS_CASE=str(file), EVALS_OUTPUT=str(output), HTTP_PROXY=proxy, HTTPS_PROXY=proxy)
    if key is not None:
        env["MODEL_API_KEY"] = key
    done = subprocess.run([APP / "bin" / "agent"], env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (output / "result.json").exists(), done.stderr
    events = [json.loads(line) for line in (output / "transcript.jsonl").read_text().splitlines()]
    return Run(done.returncode, json.loads((output / "result.json").read_text()), events, output)
