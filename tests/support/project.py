"""A small project of one's own: an app in a git repository, a world, cases and experiments, driven through the real CLI."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml
from support import forked_cli

EVALS = [sys.executable, "-m", "eval_pipeline.cli"]

MANIFEST: dict[str, Any] = {"name": "tiny", "image": {"base": "host"}, "agent": ["bin/agent"]}

ANSWER = """
printf '{"status": "ok", "answer": "%s"}' "$1" > "$EVALS_OUTPUT/result.json.tmp"
mv "$EVALS_OUTPUT/result.json.tmp" "$EVALS_OUTPUT/result.json"
"""

CHECK_YES = {"id": "says-yes", "text": "Says yes", "points": 1, "check": {"contains": "yes"}}


class Project:
    """`agent` scripts are POSIX sh; they may call `answer TEXT`. state_dir may be shared by several projects.

    like: a project that this one starts as a copy of; its making costs a tenth then.
    """

    def __init__(
        self, root: Path, state_dir: Path, extra_env: Mapping[str, str] | None = None, like: Project | None = None
    ) -> None:
        self.root = root
        self.state_dir = state_dir
        self.worlds = root / "worlds_src"
        self.app = root / "app"
        self.env = {**os.environ, "EVALS_STATE_DIR": str(state_dir), "EVALS_WORLDS_DIR": str(self.worlds), **(extra_env or {})}
        if like is not None:
            shutil.copytree(like.worlds, self.worlds, symlinks=True)
            shutil.copytree(like.app, self.app, symlinks=True)
            return
        for folder in ("worlds", "datasets", "experiments"):
            (self.worlds / folder).mkdir(parents=True)
        self.write("app.yaml", {"name": "tiny", "repo": "app", "path": "."})
        self.world()
        self.manifest()
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.app)], check=True)

    def write(self, path: str, data: Any) -> Path:
        target = self.worlds / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
        return target

    def world(self, name: str = "w", files: Mapping[str, str] | None = None) -> None:
        documents = {"lease.txt": "The notice period is 60 days.\n"} if files is None else files
        self.write(f"worlds/{name}/world.yaml", {"id": name, "title": name, **({"documents": "documents/"} if documents else {})})
        for path, text in documents.items():
            self.write(f"worlds/{name}/documents/{path}", text)

    def case(self, name: str = "c", world: str = "w", criteria: Sequence[Mapping[str, Any]] = (CHECK_YES,), **more: Any) -> None:
        spec = {"id": name, "prompt": f"Answer {name}.", "rubric": {"criteria": [dict(c) for c in criteria]}, **more}
        self.write(f"worlds/{world}/cases/{name}.yaml", spec)

    def manifest(self, **more: Any) -> None:
        self.app.mkdir(exist_ok=True)
        (self.app / "evals.app.yaml").write_text(yaml.safe_dump({**MANIFEST, **more}))

    def agent(self, script: str) -> str:
        """Commit `script` as the agent; returns the commit."""
        body = "#!/bin/sh\nanswer() {" + ANSWER + "}\n" + script
        return self.commit({"bin/agent": body})

    def commit(self, files: Mapping[str, str]) -> str:
        for path, text in files.items():
            target = self.app / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755)
        git = ["git", "-C", str(self.app), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    def experiment(self, name: str, **more: Any) -> Path:
        self.write("datasets/all.yaml", {"name": "all", "cases": ["*"]})
        # A seed of its own: no experiment takes the results of another one by chance
        spec = {
            "name": name,
            "dataset": "all",
            "app": "tiny",
            "arms": [{"name": "a", "ref": "main"}],
            "seed": crc32(name.encode()),
        }
        spec |= more
        return self.write(f"experiments/{name}.yaml", spec)

    def evals(self, *args: str, check: bool = True, timeout_s: float = 120) -> Any:
        """The `data` of a `--json` call; with check=False the whole envelope with `exit_code`."""
        done = forked_cli.evals([*args, "--json"], self.env, self.root, timeout_s)
        try:
            envelope = json.loads(done.stdout)
        except ValueError:
            raise AssertionError(f"evals {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}") from None
        if not check:
            return {**envelope, "exit_code": done.returncode, "stderr": done.stderr}
        assert done.returncode == 0, f"evals {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return envelope["data"]

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*EVALS, *args], env=self.env, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, name: str, *args: str, check: bool = True, timeout_s: float = 120) -> Any:
        return self.evals("experiment", "run", name, "--wait", *args, check=check, timeout_s=timeout_s)

    def cells(self, name: str) -> list[dict[str, Any]]:
        return self.evals("experiment", "cells", name)

    def logs(self) -> str:
        folder = self.state_dir / "logs"
        return "\n".join(path.read_text()[-4000:] for path in folder.glob("*.log")) if folder.is_dir() else ""

    def wait_for(self, condition: Any, timeout_s: float = 60) -> Any:
        """Poll `condition` until it is true; AssertionError with the logs otherwise."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.1)
        raise AssertionError(f"waited {timeout_s} s in vain\n{self.logs()}")

    def engine_pids(self, name: str) -> list[int]:
        return [engine["pid"] for engine in self.evals("experiment", "status", name)["engines"]]

    def kill_engines(self, name: str) -> None:
        for pid in self.engine_pids(name):
            os.kill(pid, signal.SIGKILL)
