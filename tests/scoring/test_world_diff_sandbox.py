"""From a real sandbox to verdicts: an application writes its state, it is collected twice and compared."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.states import jsonl, snapshot, state_bundle

from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_diff import WorldDiff
from eval_pipeline.runner.judging import BundleTask, report_on_bundle
from eval_pipeline.sandbox.base import Phase, Resources, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.scoring.world_diff import world_diff_of

WORLD = {
    "documents/lease.md": b"Rent: 100\nNotice: 60 days\n",
    "documents/deep/er/act.txt": b"act\n",
    "database/reviews.jsonl": b'{"id": "t-1", "status": "open"}\n',
    "blobs/scan.bin": b"\0" * 5000,
    "permissions.yaml": b'{"default": ["ann"], "rules": []}',
}
# What stayed as it was is a link into the world: a dump of any size is cheap.
DUMP = """
find /world -type f | while read -r file; do
    place="/out/state/${file#/world/}"; [ -e "$place" ] || { mkdir -p "${place%/*}"; ln -s "$file" "$place"; }
done
"""
AGENT = """
mkdir -p /out/state/documents /out/state/database
sed s/60/90/ /world/documents/lease.md >/out/state/documents/lease.md
echo '{"id": "t-1", "status": "done"}' >/out/state/database/reviews.jsonl
printf '{"status": "ok", "answer": "done"}' >/out/result.json
"""
CHECKS = {
    "lease": {"documents": {"changed": "lease.md", "inserted": "90 days", "only": True}, "blobs": "unchanged"},
    "row": {"rows": {"table": "reviews", "changed": {"status": "done"}, "where": {"id": "t-1"}, "only": True}},
    "readers": {"permissions": "unchanged"},
    "nothing": "unchanged",
}


async def run(sandbox: Sandbox, command_id: str, script: str) -> None:
    await sandbox.start(command_id, ["sh", "-c", script], env={}, workdir="/out")
    async with asyncio.timeout(120):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.02)
    assert state.exit_code == 0, await sandbox.logs(command_id)


async def collected(state_dir: Path, world: Path, dest: Path, scripts: Mapping[str, str]) -> None:
    backend = LocalBackend("a", state_dir)
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", world=world, resources=Resources(disk_mib=256))
    sandbox = await backend.get_or_create(spec)
    try:
        for command_id, script in scripts.items():
            await run(sandbox, command_id, script)
        await sandbox.collect(dest)
    finally:
        await sandbox.terminate()
        await backend.aclose()


def readable(world: Path) -> None:
    for path in (world, *world.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.slow
def test_what_an_application_dumps_is_compared_and_judged(state_dir: Path, tmp_path: Path) -> None:
    world = state_dir / "world"
    manifest = snapshot(world, WORLD)
    readable(world)
    before, after = tmp_path / "before.tar.gz", tmp_path / "after.tar.gz"
    asyncio.run(collected(state_dir, world, before, {"dump": DUMP}))
    asyncio.run(collected(state_dir, world, after, {"agent": AGENT, "dump": DUMP}))
    criteria = tuple(Criterion(id=name, text=name, points=1, check={"world_diff": check}) for name, check in CHECKS.items())
    task = BundleTask(
        path=after,
        bundle="b" * 64,
        rubric=Rubric(criteria=criteria),
        world_digest="w",
        world_dir=world,
        before=before,
        state_before="s" * 64,
        manifest=manifest,
    )
    report = report_on_bundle(task)
    assert report.result.answer == "done"
    assert report.files == []
    assert report.world_diff is not None
    assert report.world_diff.summary() == WorldDiff().summary() | {"n_documents": 1, "n_rows": 1}
    verdicts = {verdict.criterion: (verdict.verdict, verdict.reason) for verdict in report.verdicts}
    assert {name: verdict for name, (verdict, _) in verdicts.items()} == {"lease": 1, "row": 1, "readers": 1, "nothing": 0}, (
        verdicts
    )
    same = report_on_bundle(task)
    assert (same.world_diff, same.verdicts) == (report.world_diff, report.verdicts), "judged again from what is stored"


MEASURED = r"""
import json, re, sys
from pathlib import Path
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.scoring.world_diff import world_diff_of
root = Path(sys.argv[1])
manifest = SnapshotManifest.model_validate_json((root / "manifest.json").read_text())
peak = lambda: int(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1]) / 1024
at_first = peak()
found = world_diff_of(root / "after.tar.gz", root / "before.tar.gz", root / "world", manifest)
print(json.dumps({"mib": peak() - at_first, "summary": found.summary()}))
"""


@pytest.mark.slow
def test_ten_thousand_linked_files_and_large_ones_take_little_memory(tmp_path: Path) -> None:
    """A process of its own may use so much, whatever the states weigh: 10,000 links, 128 MiB of changed blobs, 60,000 rows."""
    world = {f"documents/{number // 100:03}/{number:05}.txt": b"%d\n" % number for number in range(10_000)}
    manifest = snapshot(tmp_path / "world", world)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    rules = b'{"default": [], "rules": []}'
    rows = [{"id": number, "text": "x" * 200} for number in range(60_000)]
    links = {name: f"/world/{name}" for name in world}
    changed = dict(list(links.items())[5:])
    state_bundle(
        tmp_path / "before.tar.gz",
        {"permissions": rules, "database/t.jsonl": jsonl(*rows), **{f"blobs/{n}": bytes(64 << 20) for n in range(2)}},
        links,
    )
    rows[7]["text"] = "other"
    state_bundle(
        tmp_path / "after.tar.gz",
        {
            "permissions": rules,
            "database/t.jsonl": jsonl(*rows),
            **{f"documents/000/{number:05}.txt": b"new\n" for number in range(5)},
            **{f"blobs/{n}": b"\1" * (64 << 20) for n in range(2)},
        },
        changed,
    )
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["summary"] == WorldDiff().summary() | {"n_documents": 5, "n_rows": 1, "n_blobs": 2}
    assert measured["mib"] < 120, "less than a changed file of each state"


def test_the_snapshot_may_lack_what_is_linked(tmp_path: Path) -> None:
    links = {"documents/a": "/world/documents/a"}
    for name in ("before", "after"):
        state_bundle(tmp_path / name, {"permissions": b"{}"}, links)
    found = world_diff_of(tmp_path / "after", tmp_path / "before", tmp_path, SnapshotManifest(entries=()))
    assert found.n_problems == 2
    assert not found.unchanged
