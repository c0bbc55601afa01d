from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, json_option, note, starts_sandboxes, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.store.layers import LayerRow


@click.group()
def command() -> None:
    """What cells stand on: images of the app, runtimes (another commit's delta), prepared layers (with a world restored)."""


backend_option = click.option(
    "--backend", type=click.Choice(["local", "modal"]), default="local", show_default=True, help="On this machine, or on Modal."
)


@command.command("list")
@backend_option
@json_option
@with_settings
def list_images(settings: Settings, backend: str, as_json: bool) -> None:
    """Every layer there, newest first."""
    from eval_pipeline.runner.backends import place_of
    from eval_pipeline.store.layers import LayerRows
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        layers = LayerRows(records.database, backend, place_of(settings, backend)).all()
        worlds = records.ledger.world_names(row.world for row in layers if row.world is not None)
    rows = [_row(row, worlds) for row in layers]
    emit(rows, as_json, lambda: _show(rows))


@command.command("build")
@click.option("--ref", metavar="REF|WORKTREE", help="The app at this revision; its branch when it is not given.")
@backend_option
@json_option
@with_settings
@starts_sandboxes
def build(settings: Settings, ref: str | None, backend: str, as_json: bool) -> None:
    """Build the whole image of the app now, as the hourly run does.

    Nothing happens when it is there.
    """
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.runner.app_image import build_image
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    require_isolation(settings, backend)
    with open_records(settings) as records, open_services(settings, records, backend) as services:
        made = asyncio.run(build_image(services, Library(settings.worlds_dir), ref))
    data = _row(made.row, {}) | {
        "commit": made.head.arm.commit,
        "built": made.built,
        "digest": made.row.digest,
        "published": made.published,
    }
    seconds = "" if made.row.built_s is None else f" in {made.row.built_s:.1f} s"
    said = f"built{seconds}" if made.built else "was there"
    emit(
        data, as_json, lambda: click.echo(f"the image of {made.row.app} at {_commit(data['commit'])} {said}: {made.row.key[:12]}")
    )


@command.command("warm")
@click.option("--count", type=click.IntRange(0, 1000), help="For each world; what app.yaml says when it is not given.")
@backend_option
@json_option
@with_settings
@starts_sandboxes
def warm(settings: Settings, count: int | None, backend: str, as_json: bool) -> int:
    """Let sandboxes of the branch's head stand ready for cells.

    The hourly run does so, too; those that no cell can take any more are ended.
    """
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.runner.warm_pool import fill
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    require_isolation(settings, backend)
    with open_records(settings) as records, open_services(settings, records, backend) as services:
        report = asyncio.run(fill(services, Library(settings.worlds_dir), count))
    failure = None
    if report.failed:
        said = "; ".join(f"{world}: {why}" for world, why in report.failed.items())
        failure = Failure("warm", f"no warm sandbox for {said}")

    def people() -> None:
        if report.count is None:
            click.echo("app.yaml asks for no warm sandboxes (`warm: {count: 2}`)")
        for world, ready in report.ready.items():
            click.echo(f"{world}: {ready} stand ready, {report.started.get(world, 0)} of them started now")
        if report.ended:
            click.echo(f"{len(report.ended)} ended")

    emit(report.__dict__, as_json, people, failure)
    return 1 if failure else 0


@command.command("status")
@backend_option
@json_option
@with_settings
def status(settings: Settings, backend: str, as_json: bool) -> None:
    """What cells of the branch's head would stand on now, and which sandboxes stand ready."""
    from eval_pipeline.runner.app_image import image_status
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.runner.warm_pool import warm_rows
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records, open_services(settings, records, backend) as services:
        found = image_status(services, Library(settings.worlds_dir))
        ready = warm_rows(services).free()
    image = None if found.image is None else _row(found.image, {})
    data = {"branch": found.branch, "head": found.head, "behind": found.behind, "age_s": found.age_s, "image": image}
    columns = ["sandbox", "world", "ready_s", "left_s"]
    rows = [{"sandbox": row.name, "world": row.world, "ready_s": row.ready_s, "left_s": row.left_s} for row in ready]

    def people() -> None:
        where = f"{found.branch} is at {found.head[:12]}"
        if found.image is None:
            click.echo(f"{where}; no ancestor of it has an image: the first cell builds one, or `evals image build`")
        else:
            behind = "of it" if found.behind == 0 else f"{found.behind} commits behind"
            click.echo(f"{where}; the image is {behind}, built {ago(found.image.created_at)}: {found.image.key[:12]}")
        if rows:
            table(columns, [[row[name] for name in columns] for row in rows], right=["ready_s", "left_s"])

    emit(data | {"warm": rows}, as_json, people)


class _Age(click.ParamType):
    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(min|h|d)", str(value))
        if found is None:
            self.fail(f"{value!r} is no age: write 14d, 12h or 90min", param, ctx)
        return float(found[1]) * {"min": 60, "h": 3600, "d": 86400}[found[2]]


@command.command("gc")
@click.option("--older-than", "unused_s", type=_Age(), default="14d", show_default=True, help="Unused for so long.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@backend_option
@json_option
@with_settings
def collect(settings: Settings, unused_s: float, dry_run: bool, backend: str, as_json: bool) -> None:
    """Remove layers that nobody used for long, and what crashes left of others.

    Cells and builds may go on meanwhile.

    What a living sandbox stands on, what an unfinished experiment needs, and an app's newest image stay.
    """
    from eval_pipeline.runner.layer_gc import collect as collect_layers
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records, open_services(settings, records, backend) as services:
        gone = asyncio.run(collect_layers(services, unused_s, dry_run=dry_run))
    rows = [one.__dict__ for one in gone]

    def people() -> None:
        for row in rows:
            click.echo(f"{row['kind']}  {row['app'] or '-'}  {_commit(row['commit']) if row['app'] else '-'}  {row['key'][:12]}")
        size = sum(row["size_bytes"] or 0 for row in rows) / 2**20
        click.echo(f"{len(rows)} layers {'would be ' if dry_run else ''}removed, {size:.1f} MiB")

    emit({"removed": rows, "dry_run": dry_run}, as_json, people)


def _row(row: LayerRow, worlds: dict[str, str]) -> dict[str, Any]:
    return {
        "key": row.key,
        "kind": row.kind,
        "app": row.app,
        "commit": row.commit,
        "tree": row.tree,
        "world": None if row.world is None else worlds.get(row.world, row.world[:12]),
        "size_bytes": row.size_bytes,
        "built_s": row.built_s,
        "created_at": row.created_at,
        "used_at": row.used_at,
        "ref": row.ref,
        "expires_at": row.expires_at,
    }


def _commit(commit: str | None) -> str:
    return commit[:12] if commit else "the working tree"


def _show(rows: list[dict[str, Any]]) -> None:
    if not rows:
        note("no layer has been built here: the first cell builds what it needs, `evals image build` an image ahead of it")
        return
    columns = ["kind", "app", "commit", "world", "MiB", "age", "last used", "key"]
    cells = [
        [
            row["kind"],
            row["app"],
            _commit(row["commit"]),
            row["world"],
            None if row["size_bytes"] is None else f"{row['size_bytes'] / 2**20:.1f}",
            ago(row["created_at"]),
            ago(row["used_at"]),
            row["key"][:12],
        ]
        for row in rows
    ]
    table(columns, cells, right=["MiB"])


def ago(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
