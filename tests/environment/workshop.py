"""An app in a repository of the test's own, its layers on the real local backend, and sandboxes on them to look inside."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.environment.images import AppSource
from eval_pipeline.environment.layers import Layers, Prepared
from eval_pipeline.environment.locks import HostLocks
from eval_pipeline.sandbox.base import Phase, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import read_manifest
from eval_pipeline.store.artifacts import LocalArtifacts
from eval_pipeline.store.database import Database
from eval_pipeline.store.layers import LayerRows

TOKEN = "head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \\n'"
"""A shell command whose output tells two executions apart."""

RESTORE = f"mkdir -p /srv && cat /world/matter.txt > /srv/matter && {TOKEN} > /srv/token"
"""A restore that leaves the world's text, and a token of its own."""


class Workshop:
    """`repo` holds the app at `path`. Every call of `layers` is what another process would have.

    state_dir may be shared: what is built here is like nothing another one built.
    """

    def __init__(self, root: Path, state_dir: Path, database_url: str, path: str = ".") -> None:
        self.root = root
        self.state_dir = state_dir
        self.repo = root / "repo"
        self.path = path
        self.app = self.repo / path
        self.app.mkdir(parents=True)
        (self.app / "unique").write_text(os.urandom(8).hex())
        self.database = Database(database_url)
        self.database.migrate()
        self.store = LocalArtifacts(state_dir / "artifacts")
        self.backend = LocalBackend("shop", state_dir)
        self.rows = LayerRows(self.database, "local", self.backend.place)
        (state_dir / "tmp").mkdir(exist_ok=True)
        self._git("init", "-q", "-b", "main", ".")

    def layers(self) -> Layers:
        return Layers(self.backend, self.rows, self.store, "shop", HostLocks(self.state_dir / "locks"), self.state_dir / "tmp")

    def commit(self, files: Mapping[str, str | None], **manifest: Any) -> str:
        """Files of the app; None removes one. Scripts below bin/ get their first line and their x-bit."""
        for name, text in files.items():
            target = self.app / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                target.unlink()
                continue
            target.write_text(f"#!/bin/sh\n{text}\n" if name.startswith("bin/") else text)
            target.chmod(0o755)
        if manifest:
            whole = {"name": "shop", "image": {"base": "host"}, "agent": ["bin/agent"], **manifest}
            (self.app / "evals.app.yaml").write_text(yaml.safe_dump(whole))
        self._git("add", "-A")
        self._git("commit", "-q", "--allow-empty", "-m", "x")
        return self._git("rev-parse", "HEAD")

    def _git(self, *args: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-C", str(self.repo), *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def checkout(self, commit: str, branch: str) -> None:
        self._git("checkout", "-q", "-b", branch, commit)

    def arm(self, commit: str | None, name: str = "a") -> LockedArm:
        """commit None: the working tree."""
        tree = git.worktree_tree(self.repo, self.path) if commit is None else git.tree_of(self.repo, commit, self.path)
        manifest = read_manifest(self.repo, tree)
        return LockedArm(name=name, ref=commit or "WORKTREE", commit=commit, tree=tree, manifest=manifest, config={})

    def source(self, *commits: str) -> AppSource:
        return AppSource(repo=self.repo, path=self.path, commits=commits)

    def world(self, name: str) -> tuple[str, Path]:
        folder = self.root / "worlds" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matter.txt").write_text(name)
        return name * 8, folder

    @asynccontextmanager
    async def standing_on(self, prepared: Prepared):
        name = f"look-{os.urandom(6).hex()}"
        spec = SandboxSpec(name=name, installation="shop", layers=prepared.layers, world=prepared.world_dir)
        sandbox = await self.backend.get_or_create(spec)
        try:
            yield sandbox
        finally:
            await sandbox.terminate()

    async def sh(self, prepared: Prepared, script: str) -> str:
        """What the script prints in a fresh sandbox."""
        async with self.standing_on(prepared) as sandbox:
            await sandbox.start("look", ["/bin/sh", "-c", script], env={}, workdir="/app")
            while (await sandbox.state("look")).phase is Phase.RUNNING:
                await asyncio.sleep(0.01)
            stdout, stderr = await sandbox.logs("look")
            return (stdout + stderr).decode(errors="replace").strip()
