"""Logs of Inspect: `.eval` (a zip) and `.json`, whole or as far as they were written."""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from backports.zstd import ZstdError, zipfile
from pydantic import AwareDatetime, BaseModel, Field

from eval_pipeline.analysis.imported.files import (
    MAX_ENTRIES,
    MAX_JSON,
    MAX_UNPACKED,
    MIB,
    at_most,
    flat_scores,
    held,
    name_of,
    parsed,
)
from eval_pipeline.analysis.imported.reading import ReadArm, ReadRow, Tokens, cost_of, usage_of
from eval_pipeline.analysis.imported.table import ImportedRow, ImportedSource
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import SpecError

_LIMITS = {"time": Outcome.AGENT_TIMEOUT, "working": Outcome.AGENT_TIMEOUT, "operator": Outcome.OK}
_HEADER, _START = "header.json", "_journal/start.json"
_MAX_EPOCHS = 100_000


class _Score(BaseModel):
    value: Any = None


class _Counts(BaseModel):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_cache_write: int | None = None
    input_tokens_cache_read: int | None = None
    reasoning_tokens: int | None = None
    total_cost: float | None = None


class _Error(BaseModel):
    message: str = ""


class _Limit(BaseModel):
    type: str
    limit: float = 0.0


class _Sample(BaseModel):
    id: int | str
    epoch: int = Field(ge=1, le=_MAX_EPOCHS)
    input: Any = None
    choices: list[str] | None = None
    scores: dict[str, _Score] | None = None
    model_usage: dict[str, _Counts] = {}
    started_at: AwareDatetime | None = None
    completed_at: AwareDatetime | None = None
    total_time: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    working_time: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    error: _Error | None = None
    limit: _Limit | None = None
    invalidation: Any = None


class _Dataset(BaseModel):
    name: str | None = None
    samples: int | None = None
    sample_ids: list[int | str] | None = None


class _Config(BaseModel):
    epochs: int | None = Field(default=None, ge=1, le=_MAX_EPOCHS)


class _Eval(BaseModel):
    task: str
    task_version: int | str = 0
    model: str
    solver: str | None = None
    created: str | None = None
    run_id: str | None = None
    dataset: _Dataset = _Dataset()
    config: _Config = _Config()
    packages: dict[str, str] = {}


class _Header(BaseModel):
    status: Literal["started", "success", "cancelled", "error"] = "started"
    eval: _Eval


class _Log(_Header):
    samples: list[_Sample] | None = None


def read_inspect(path: Path) -> ReadArm:
    """Raises SpecError for what is no log, is damaged, or unpacks to more than is read."""
    with held(path) as (file, sha256):
        zipped = file.read(2) == b"PK"
        file.seek(0)
        header, rows = (_of_zip if zipped else _of_json)(file, path)
    return _arm(ImportedSource(file=path.name, sha256=sha256), path, header, rows)


def _of_json(file: BufferedReader, path: Path) -> tuple[_Header, list[ReadRow]]:
    log = parsed(at_most(file, path), _Log, str(path))
    return log, [_row(sample, f"{path}: sample {at}") for at, sample in enumerate(log.samples or [])]


def _of_zip(file: BufferedReader, path: Path) -> tuple[_Header, list[ReadRow]]:
    with _archive(file, path) as archive:
        return _header(archive, path), [_row(*one) for one in _samples(archive, path)]


@contextmanager
def _archive(file: BufferedReader, path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES or sum(entry.file_size for entry in entries) > MAX_UNPACKED:
                said = f"holds {len(entries)} entries of {sum(entry.file_size for entry in entries) // MIB} MiB"
                raise SpecError(f"{said}; {MAX_ENTRIES} and {MAX_UNPACKED // MIB} are read", where=str(path))
            yield archive
    except (
        zipfile.BadZipFile,
        ZstdError,
        zlib.error,
        lzma.LZMAError,
        struct.error,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:
        hint = "is it whole? A log that is still being written is read once it has been flushed"
        raise SpecError(f"can't be unpacked: {str(error)[:200] or 'it ends early'}", where=str(path), hint=hint) from None


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    if entry.file_size > MAX_JSON:
        raise SpecError(f"{entry.filename} is larger than {MAX_JSON // MIB} MiB", where=str(path))
    with archive.open(entry) as stream:
        return stream.read(MAX_JSON)


def _header(archive: zipfile.ZipFile, path: Path) -> _Header:
    """Of a log that was not finished, what stood at its start."""
    for name in (_HEADER, _START):
        if name in archive.NameToInfo:
            return parsed(_entry(archive, archive.getinfo(name), path), _Header, f"{path}: {name}")
    raise SpecError(f"is no Inspect log: it holds neither {_HEADER} nor {_START}", where=str(path))


def _samples(archive: zipfile.ZipFile, path: Path) -> Iterator[tuple[_Sample, str]]:
    for entry in archive.infolist():
        if entry.filename.startswith("samples/") and entry.filename.endswith(".json"):
            where = f"{path}: {entry.filename}"
            yield parsed(_entry(archive, entry, path), _Sample, where), where


def _arm(source: ImportedSource, path: Path, header: _Header, rows: list[ReadRow]) -> ReadArm:
    asked, dataset = header.eval, header.eval.dataset
    epochs = asked.config.epochs or 1
    if not rows:
        hint = "it was written without its samples, or before the first one ended"
        raise SpecError("holds no samples", where=str(path), hint=hint)
    there = {(one.row.case, one.row.trial) for one in rows}
    planned = [(name_of(one, "a sample's id", str(path)), trial) for one in dataset.sample_ids or [] for trial in range(epochs)]
    if len(planned) > MAX_ENTRIES:
        raise SpecError(f"plans {len(planned)} samples, {MAX_ENTRIES} are read", where=str(path))
    absent = [one for one in dict.fromkeys(planned) if one not in there]
    unnamed = 0 if dataset.sample_ids or header.status == "success" else max(0, (dataset.samples or 0) * epochs - len(rows))
    said = [] if header.status == "success" else [f"{path.name}: its status is {header.status}; what it holds was read"]
    if n := len(absent) + unnamed:
        said.append(f"{path.name}: {n} planned samples are not in it")
    return ReadArm(
        source=source,
        names=(asked.model, asked.solver or ""),
        version=str(asked.task_version),
        task=asked.task,
        config={
            "model": asked.model,
            "solver": asked.solver,
            "task": asked.task,
            "task_version": str(asked.task_version),
            "dataset": dataset.name,
            "run_id": asked.run_id,
            "inspect_ai": asked.packages.get("inspect_ai"),
        },
        rows=[*rows, *(_absent(case, trial) for case, trial in absent)],
        n_absent=unnamed,
        notes=said,
    )


def _absent(case: str, trial: int) -> ReadRow:
    return ReadRow(row=ImportedRow(case=case, trial=trial, outcome=Outcome.CANCELLED), scores={})


def _row(sample: _Sample, where: str) -> ReadRow:
    outcome, error = _ending(sample)
    usage, untold = usage_of([(model, _tokens(told)) for model, told in sample.model_usage.items()], where)
    return ReadRow(
        row=ImportedRow(
            case=name_of(sample.id, "its id", where),
            trial=sample.epoch - 1,
            outcome=outcome,
            error=error,
            question=_question(sample),
            usage=usage,
            untold=untold,
            cost_usd=cost_of([told.total_cost for told in sample.model_usage.values()], where),
            latency_s=sample.total_time,
            censored=outcome == Outcome.AGENT_TIMEOUT,
            working_s=sample.working_time,
            started_at=sample.started_at,
            ended_at=sample.completed_at,
        ),
        scores=flat_scores({name: score.value for name, score in (sample.scores or {}).items()}, where),
    )


def _ending(sample: _Sample) -> tuple[Outcome, str | None]:
    """A sample with an error and a score was scored all the same; one without a score is Inspect's own to lose, like ours."""
    if sample.invalidation is not None:
        return Outcome.CANCELLED, "invalidated"
    if sample.error is not None:
        return (Outcome.OK if sample.scores else Outcome.INFRA_FAILURE), sample.error.message[:2000]
    if sample.limit is not None:
        return _LIMITS.get(sample.limit.type, Outcome.BUDGET_EXCEEDED), f"limit: {sample.limit.type[:40]} {sample.limit.limit:g}"
    return Outcome.OK, None


def _question(sample: _Sample) -> str | None:
    """Of what was asked, without what a log adds to it (the ids of messages)."""
    asked = sample.input
    if isinstance(asked, list):
        asked = [{key: one.get(key) for key in ("role", "content")} if isinstance(one, dict) else one for one in asked]
    return None if asked is None else digest([repr(asked), sample.choices])


def _tokens(told: _Counts) -> Tokens:
    """What came from a cache is no part of Inspect's input; how long it was written for is not told: as a rule, 5 minutes."""
    read, written = told.input_tokens_cache_read, told.input_tokens_cache_write
    sent = (told.input_tokens or 0) + (read or 0) + (written or 0)
    added_up = None not in (read, written) or told.total_tokens == sent + (told.output_tokens or 0)
    reasoning = told.reasoning_tokens
    return Tokens(
        input_uncached=told.input_tokens,
        output_tokens=told.output_tokens,
        input_tokens=sent if added_up else None,
        cache_read=read,
        cache_write_5m=written,
        reasoning_tokens=None if reasoning is None else min(reasoning, told.output_tokens or 0),
    )
