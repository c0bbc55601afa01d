"""A loopback Modal in a process of its own, for the unmodified client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eval_pipeline.sandbox.local.places import exclusive
from eval_pipeline.sandbox.modal import ModalBackend
from eval_pipeline.settings import ModalSettings

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class LoopbackModal:
    """url: what MODAL_SERVER_URL says. The rest is orders to the server and looks behind it."""

    url: str
    admin: str
    pid: int
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": "ak-loopback",
            "MODAL_TOKEN_SECRET": "as-loopback",
            "MODAL_CONFIG_PATH": "/nonexistent/modal.toml",
            "MODAL_ENVIRONMENT": "main",
            "MODAL_DISABLE_API_PROXY": "1",
        }

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.admin}/state") as answer:
            return json.load(answer)

    def sandboxes(self, app: str | None = None) -> list[dict[str, Any]]:
        state = self.state()
        wanted = state["apps"].get(app, "") if app else None
        return [one for one in state["sandboxes"] if wanted is None or one["app"] == wanted]

    def order(self, *faults: dict[str, Any]) -> None:
        self._post("faults", list(faults))

    def lose(self, name: str) -> None:
        self._post("lose", {"name": name})

    def expire(self, image_id: str) -> None:
        self._post("expire", {"image_id": image_id})

    def _post(self, path: str, data: Any) -> None:
        request = urllib.request.Request(f"{self.admin}/{path}", json.dumps(data).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()


class FileRefs:
    """Layer refs in a file, for backends in several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> str | None:
        found = self._read().get(key)
        return found["ref"] if found and datetime.fromisoformat(found["expires_at"]) > datetime.now(UTC) else None

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        with exclusive(self._path.with_suffix(".lock")):
            known = self._read()
            standing = known.setdefault(key, {"ref": ref, "expires_at": expires_at.isoformat()})
            self._write(known)
        return standing["ref"]

    def expires_at(self, key: str) -> datetime | None:
        found = self._read().get(key)
        return datetime.fromisoformat(found["expires_at"]) if found else None

    def keep(self, key: str, ref: str, built_s: float) -> str:
        return self.put(key, ref, datetime.max.replace(tzinfo=UTC))

    def remove(self, key: str) -> None:
        with exclusive(self._path.with_suffix(".lock")):
            self._write({name: one for name, one in self._read().items() if name != key})

    def gone(self, ref: str) -> None:
        with exclusive(self._path.with_suffix(".lock")):
            self._write({name: one for name, one in self._read().items() if one["ref"] != ref})

    def _read(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def _write(self, known: dict[str, Any]) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(known))
        partial.rename(self._path)


def backend(installation: str, app: str, state_dir: Path, **more: Any) -> ModalBackend:
    """With its refs in `state_dir`, against the server that the environment names."""
    return ModalBackend(installation, ModalSettings(app=app, max_sandboxes=100), FileRefs(state_dir / "layer-refs.json"), **more)


@contextmanager
def loopback_modal(folder: Path, wrapper: Sequence[str] = (), options: Sequence[str] = ()) -> Generator[LoopbackModal]:
    """Only root can serve: a sandbox there has a root of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    with (folder / "modal_server.log").open("wb") as log:
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "modal_server", str(folder / "modal"), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (folder / "modal_server.log").read_text()
        told = json.loads(line)
        yield LoopbackModal(told["url"], told["admin"], process.pid, folder / "modal")
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
