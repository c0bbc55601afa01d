"""The verbs that write a case, or a draft of one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import emit, harmless, json_option, note, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.specs.case_new import NewCase
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.yaml_file import YamlFile

dry_run_option = click.option("--dry-run", is_flag=True, help="Check it and show the file; write nothing.")


@click.command(
    "new",
    epilog="""\b
Examples:
  evals case new harbour-spa.notice --prompt "What is the notice period?" \\
    --criterion '{id: period, text: Says 60 days, points: 2, check: {contains: 60 days}}' \\
    --criterion "Explains from which day the period runs"
  evals case new harbour-spa.notice --from case.yaml --dry-run
  evals case from-chat chat.json | evals case new harbour-spa.consents --from -""",
)
@click.argument("name", metavar="WORLD.CASE")
@click.option("--prompt", help="What the agent is asked.")
@click.option(
    "--criterion",
    "criteria",
    multiple=True,
    metavar="TEXT|YAML",
    help="A text: 1 point, decided by a judge. Or {id, text, points, check | judge, ...} as in a file. May be given again.",
)
@click.option("--pass-at", type=float, help="The score from which it passes; 1 when it is not given.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=NUMBER", help="wall_s, cost_usd, turns or tokens. May be given again."
)
@click.option("--tag", "tags", multiple=True, help="May be given again.")
@click.option("--deliverable", "deliverables", multiple=True, metavar="FILE", help="May be given again.")
@click.option("--reference", help="What a right answer is: for judges and people, never for an agent.")
@click.option("--from", "source", metavar="FILE|-", help="YAML or JSON with what no option says, `-` from stdin.")
@dry_run_option
@json_option
@with_settings
def new(settings: Settings, name: str, source: str | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Write a case from a prompt and criteria. The same again changes nothing; another one under the same name is refused."""
    from eval_pipeline.specs.case_new import new_case
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    world, case_id = _parts(name)
    made = new_case(library, world, _draft(case_id, source, given), dry_run=dry_run)
    emit(_data(library, made, dry_run), as_json, lambda: _people(library, made, dry_run))


@click.command(
    "from-chat",
    epilog="""\b
Examples:
  evals case from-chat chat.json --replace "Anna Schmidt" > draft.yaml
  evals case from-chat trace.json --write harbour-spa.consents""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--replace",
    "names",
    multiple=True,
    metavar="NAME[=OTHER]",
    help="A name to replace, by a mark or by OTHER. May be given again.",
)
@click.option("--id", "case_id", default="draft", show_default=True, help="The draft's id.")
@click.option("--write", "name", metavar="WORLD.CASE", help="Write it as this case, as `case new` does.")
@dry_run_option
@json_option
@with_settings
def from_chat(
    settings: Settings, file: Path, names: tuple[str, ...], case_id: str, name: str | None, dry_run: bool, as_json: bool
) -> None:
    """Draft a case from a kept conversation, personal details replaced.

    FILE holds OpenAI messages, or OpenTelemetry's spans or events of generative AI.
    The last question is the prompt, after the turns before it; what was answered is the reference and, part by part, criteria.
    E-mail addresses, telephone numbers, IBANs, card numbers, IP addresses and given names are replaced.
    """
    from eval_pipeline.specs.case_new import case_text, new_case
    from eval_pipeline.specs.importers.chat import draft_case, read_chat
    from eval_pipeline.specs.importers.personal import Personal
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.yaml_file import YamlFile

    chat = read_chat(file)
    pairs = {one.partition("=")[0]: one.partition("=")[2] for one in names}
    speakers = [message.name for message in chat.messages if message.name and message.role == "user"]
    world, case_id = _parts(name) if name else (None, case_id)
    draft = draft_case(chat, case_id, Personal(speakers, pairs))
    text = case_text(draft.data)
    data: dict[str, Any] = {
        "draft": draft.data,
        "text": text,
        "replaced": [asdict(one) for one in draft.replaced],
        "notes": draft.notes,
    }
    library = Library(settings.worlds_dir)
    made = new_case(library, world, YamlFile.from_bytes(text.encode(), "the draft"), dry_run=dry_run) if world else None
    if made is not None:
        data |= _data(library, made, dry_run)
    for one in draft.replaced:
        note(f"replaced: {one.kind}, {one.n} x, by {one.replacement}")
    for line in draft.notes:
        note(f"note: {line}")
    emit(data, as_json, lambda: click.echo(harmless(text), nl=False) if made is None else _people(library, made, dry_run))


def _parts(name: str) -> tuple[str, str]:
    from eval_pipeline.errors import SpecError

    world, dot, case_id = name.partition(".")
    if not dot or not world or not case_id:
        raise SpecError(f"{name!r} is not a case name: write <world>.<case>", hint="`evals world list` lists the worlds")
    return world, case_id


def _draft(case_id: str, source: str | None, given: dict[str, Any]) -> YamlFile:
    """What the options say over what the file says."""
    from eval_pipeline.errors import SpecError

    file = _read(source)
    said: dict[str, Any] = {} if file.data is None else file.data
    if not isinstance(said, dict):
        raise SpecError("must hold keys and values: id, prompt, rubric, ...", where=file.where())
    if source is not None and (said.get("id") or case_id) not in (case_id, "draft"):
        raise SpecError(
            f"id is {said['id']!r}, and the case is to be {case_id!r}", where=file.where(("id",)), hint="leave `id` out"
        )
    rubric = _inner(said, "rubric")
    if given["criteria"]:
        rubric = {**rubric, "criteria": [_criterion(text, n) for n, text in enumerate(given["criteria"], 1)]}
    if given["pass_at"] is not None:
        rubric = {**rubric, "pass_at": given["pass_at"]}
    plain = {key: given[key] for key in ("prompt", "reference") if given[key] is not None}
    plain |= {key: list(given[key]) for key in ("tags", "deliverables") if given[key]}
    if given["limits"]:
        plain["limits"] = {**_inner(said, "limits"), **dict(_limit(text) for text in given["limits"])}
    file.data = {**said, "id": case_id, **plain, **({"rubric": rubric} if rubric else {})}
    return file


def _inner(said: dict[str, Any], key: str) -> dict[str, Any]:
    found = said.get(key)
    return found if isinstance(found, dict) else {}


def _read(source: str | None) -> YamlFile:
    from eval_pipeline.specs.yaml_file import YamlFile

    if source is None:
        return YamlFile.from_bytes(b"", "the options")
    if source == "-":
        return YamlFile.from_bytes(sys.stdin.buffer.read(), "stdin")
    return YamlFile(Path(source))


def _criterion(text: str, number: int) -> dict[str, Any]:
    from eval_pipeline.specs.yaml_file import YamlFile

    if not text.lstrip().startswith("{"):
        return {"id": f"criterion-{number}", "text": text, "points": 1, "judge": True}
    return YamlFile.from_bytes(text.encode(), f"criterion {number}").data


def _limit(text: str) -> tuple[str, float | int]:
    from eval_pipeline.errors import SpecError

    name, _, value = text.partition("=")
    try:
        return name, float(value) if name in ("wall_s", "cost_usd") else int(value)
    except ValueError:
        raise SpecError(
            f"--limit {text!r} is not NAME=NUMBER", hint="for example --limit wall_s=300 --limit cost_usd=0.5"
        ) from None


def _data(library: Library, made: NewCase, dry_run: bool) -> dict[str, Any]:
    return {
        "case": made.case.name,
        "file": library.shown(made.path),
        "created": made.created,
        "exists": made.exists,
        "dry_run": dry_run,
        "text": made.text,
    }


def _people(library: Library, made: NewCase, dry_run: bool) -> None:
    if dry_run:
        click.echo(harmless(made.text), nl=False)
        note(f"dry run: {library.shown(made.path)} {'is there already, the same' if made.exists else 'would be written'}")
        return
    said = "was there already, the same" if made.exists else "is written"
    click.echo(f"{library.shown(made.path)} {said}; try it: evals case try {made.case.name}")
