"""A small app with a service: one table of notes in a file, behind HTTP; restored from a world and dumped as one."""

from __future__ import annotations

from typing import Any

from support.project import Project

PORT = 8077

SERVER = f'''#!/usr/bin/env python3
"""GET lists the notes; POST adds one. The state is /app/data/notes.jsonl."""
import json, os, pathlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
STORE = pathlib.Path("/app/data/notes.jsonl")
class Desk(BaseHTTPRequestHandler):
    def answer(self, data):
        self.send_response(200); self.end_headers(); self.wfile.write(data)
    def do_GET(self):
        self.answer(STORE.read_bytes())
    def do_POST(self):
        note = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with STORE.open("a") as store:
            store.write(json.dumps({{"id": sum(1 for _ in STORE.open()) + 1, "text": note}}) + "\\n")
        self.answer(b"ok")
    def log_message(self, *_): pass
print("serving", flush=True)
ThreadingHTTPServer(("127.0.0.1", {PORT}), Desk).serve_forever()
'''

READY = f"""#!/usr/bin/env python3
import urllib.request
urllib.request.urlopen("http://127.0.0.1:{PORT}/", timeout=5).read()
"""

RESTORE = """#!/bin/sh
set -e
mkdir -p /app/data
cat "$1/database/notes.jsonl" > /app/data/notes.jsonl
"""

DUMP = """#!/bin/sh
set -e
cd /world
find documents -type d -exec mkdir -p "$1/state/{}" ';'
find documents -type f -exec ln -s "/world/{}" "$1/state/{}" ';'
mkdir "$1/state/database"
cp /app/data/notes.jsonl "$1/state/database/notes.jsonl"
"""

AGENT = f"""
python3 - <<'END'
import urllib.request
urllib.request.urlopen("http://127.0.0.1:{PORT}/", data=b"from the agent", timeout=5).read()
END
printf '{{"type": "usage", "model": "m", "output": 3}}\\n' > "$EVALS_OUTPUT/transcript.jsonl"
answer yes
"""

MANIFEST: dict[str, Any] = {
    "restore": ["bin/restore", "/world"],
    "dump": ["bin/dump", "/out"],
    "services": {"up": ["bin/up"], "ready": ["bin/ready"], "ready_timeout_s": 20, "ports": [PORT]},
    "schema_version": 1,
}


def desk(project: Project, *, agent: str = AGENT, files: dict[str, str] | None = None, **more: Any) -> str:
    """Give the project this app and a world `w` of two notes; returns the commit."""
    project.manifest(**{**MANIFEST, **more})
    parts = {"id": "w", "title": "w", "documents": "documents/", "database": "database/"}
    project.write("worlds/w/world.yaml", "# kept as it is\n" + "".join(f"{key}: {value}\n" for key, value in parts.items()))
    project.write("worlds/w/database/notes.jsonl", '{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n')
    project.case()
    programs = {"bin/up": SERVER, "bin/ready": READY, "bin/restore": RESTORE, "bin/dump": DUMP}
    project.commit({**programs, **(files or {})})
    return project.agent(agent)
