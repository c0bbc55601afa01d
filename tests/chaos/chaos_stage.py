"""Where rounds are played: one state directory with its Postgres, one small app, one backend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg2
from chaos.chaos_witness import Witness
from support.modal_loopback import LoopbackModal
from support.project import Project

from eval_pipeline.environment.snapshotting import record_snapshot
from eval_pipeline.gateway.client import ensure_gateway, stop
from eval_pipeline.host import reachable_root
from eval_pipeline.runner.planning import commit, plan
from eval_pipeline.settings import Settings, load_settings
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_experiment
from eval_pipeline.store.artifacts import ArtifactStore, open_store
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.postgres import server_status
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.store.snapshots import restore
from eval_pipeline.vault.delivery import Secrets

TREE = Path(__file__).resolve().parents[2]
APP = "chaos"
_STORE_MIB = 640  # for 2 MiB a cell of 50 rounds, and then some: what fills it up is to be the fault alone
_AGENT = """
run=$(cat /proc/sys/kernel/random/uuid)
name=$(sed -n 's/^ *"name": "\\([^"]*\\)".*/\\1/p' "$EVALS_CASE")
length=$(sed -n 's/^ *"length_s": "\\([^"]*\\)".*/\\1/p' "$EVALS_CASE")
trial=$(sed -n 's/^ *"trial": \\([0-9]*\\).*/\\1/p' "$EVALS_CASE")
echo "start $name/$trial $run" >/world/mark
echo '{"type":"usage","model":"m","input_uncached":1000,"output":0}' >>"$EVALS_OUTPUT/transcript.jsonl"
ASK
sleep "$length"
mkdir -p "$EVALS_OUTPUT/files"
head -c 2000000 /dev/urandom >"$EVALS_OUTPUT/files/noise"
answer "yes $run"
echo "end $name/$trial $run" >/world/mark
"""
_ASK = "until curl -sSf -m 2 http://model-stand-in/v1/models >/dev/null 2>&1; do sleep 0.1; done"
PRICE_USD = 1  # of each start of an agent


@dataclass(frozen=True)
class Stage:
    backend: str
    project: Project
    settings: Settings
    records: Records
    store: ArtifactStore
    witness: Witness
    modal: LoopbackModal | None
    full_disks: bool

    def experiment(self, name: str, trials: int, length_s: float) -> ExperimentRow:
        """Locked and in the ledger; nothing of it runs yet."""
        arm = {"name": "a", "ref": "main", "config": {"name": name, "length_s": f"{length_s:.1f}"}}
        path = self.project.experiment(name, trials=trials, arms=[arm], backend=self.backend)
        locked = lock_experiment(Library(self.settings.worlds_dir), path)
        return commit(locked, plan(locked, self.records, Secrets(self.settings, self.records), fresh=True), self.records)

    def command(self, experiment: str, launcher: bool) -> list[str]:
        if launcher:
            return [sys.executable, "-m", "eval_pipeline.defs.launcher", experiment]
        return [sys.executable, str(Path(__file__).with_name("chaos_engine.py")), experiment]

    def env(self, tree: Path, more: dict[str, str]) -> dict[str, str]:
        return {**os.environ, **self.project.env, "PYTHONPATH": str(tree), **more}

    def postgres_pid(self) -> int | None:
        return server_status(self.settings).pid

    def proxy_pid(self) -> int:
        return ensure_gateway(self.settings.state_dir).pid()

    def ask(self, query: str, *values: Any) -> list[Any]:
        """Straight from Postgres; empty while it is away."""
        url = self.records.database.url.replace("postgresql+psycopg2", "postgresql", 1)
        try:
            connection = psycopg2.connect(url, connect_timeout=2)
        except psycopg2.OperationalError:
            return []
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchall() if cursor.description else []
        except psycopg2.OperationalError:
            return []
        finally:
            connection.close()

    @property
    def filler(self) -> Path:
        return self.settings.state_dir / "artifacts" / "filler"

    @cached_property
    def newer(self) -> Path:
        """The product's tree as a later release, elsewhere on the disk, with another runner for new sandboxes."""
        tree = self.project.root / "newer"
        shutil.copytree(TREE / "eval_pipeline", tree / "eval_pipeline", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dagster.yaml", "pyproject.toml"):
            shutil.copy(TREE / name, tree / name)
        runner = tree / "eval_pipeline" / "sandbox" / "runner.sh"
        runner.write_text(runner.read_text() + "# of a later release\n")
        return tree


@contextmanager
def stage(backend: str, root: Path, modal: LoopbackModal | None) -> Generator[Stage]:
    state = root / "state"
    state.mkdir()
    more = {"EVALS_MODAL_APP": APP, "EVALS_MODAL_CREATES_PER_S": "50"}
    project = Project(root / "p", state, more)
    _write_app(project, asks=backend == "local")
    with ExitStack() as stack:
        full_disks = stack.enter_context(_small_store(state))
        settings = load_settings({**os.environ, **project.env})
        records = stack.enter_context(open_records(settings, patience_s=60.0))
        stack.callback(stop, state)
        witness = Witness()
        stack.callback(witness.close)
        made = Stage(backend, project, settings, records, open_store(settings), witness, modal, full_disks)
        _warm_up(made)
        yield made


def _write_app(project: Project, *, asks: bool) -> None:
    project.manifest(egress=["model-stand-in:80"] if asks else [], resources={"cpu": 1.0, "memory_mib": 256, "disk_mib": 64})
    project.agent(_AGENT.replace("ASK", _ASK if asks else ":"))
    project.case(limits={"wall_s": 120.0, "cost_usd": 5.0})
    names = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")
    row = {"provider": "p", "model": "m", "effective_from": "2020-01-01", "source": "invented"}
    project.write("prices.yaml", [{**row, **dict.fromkeys(names, str(PRICE_USD * 1000))}])


@contextmanager
def _small_store(state: Path) -> Generator[bool]:
    """The artifacts' directory as a small file system of its own, where one can be mounted: it can be filled up."""
    folder = state / "artifacts"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_STORE_MIB}m", "none", str(folder)]
    mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _warm_up(stage: Stage) -> None:
    """Layers are built and the world is where sandboxes find it, before the first round looks at the clock."""
    library, records = Library(stage.settings.worlds_dir), stage.records
    recorded = record_snapshot(library.world("w"), stage.store, records.ledger)
    snapshot = records.ledger.snapshots([recorded.digest])[recorded.digest]
    stage.witness.attach(restore(snapshot, stage.store, reachable_root(stage.settings.state_dir) / "worlds"))
    experiment = stage.experiment("warmup", 1, 0.0)
    run = subprocess.run(
        stage.command(experiment.id, launcher=False), env=stage.env(TREE, {}), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert records.views.tallies(experiment.id)[experiment.id].n_done == 1, run.stderr
    if stage.backend == "modal":
        for folder in _volumes(stage):
            stage.witness.attach(folder)


def _volumes(stage: Stage) -> Sequence[Path]:
    """Where the loopback Modal keeps the uploaded world."""
    assert stage.modal is not None
    found = [path.parent.parent for path in stage.modal.folder.rglob("documents/lease.txt") if "/volumes/" in str(path)]
    assert found, f"no world below {stage.modal.folder}"
    return found
