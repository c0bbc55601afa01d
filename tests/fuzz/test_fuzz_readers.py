"""Everything at every reader of what an agent or a stranger wrote: it answers, or refuses in the way its docstring says.

What is thrown: bytes and JSON of any kind, and good samples with pieces changed, doubled, cut out and put in. Elsewhere, with shapes of
their own: documents (tests/scoring), world diffs, rubrics and YAML (tests/specs), snapshots (tests/store), redaction (tests/vault).
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval_pipeline.analysis.imported.harbor_job import read_harbor
from eval_pipeline.analysis.imported.inspect_log import read_inspect
from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.case import CaseSpec
from eval_pipeline.domain.experiment import ExperimentSpec
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.usage import usage_from_event
from eval_pipeline.errors import SandboxError, SpecError
from eval_pipeline.gateway import model_rules, model_shapes
from eval_pipeline.gateway.addresses import parse_endpoint
from eval_pipeline.gateway.request import Client, Refused, asked
from eval_pipeline.gateway.tunnel import Greeting
from eval_pipeline.runner.output import TranscriptReader, parse_result, read_output
from eval_pipeline.sandbox import modal_bundle, modal_scripts
from eval_pipeline.scoring import judge_reply, world_rows
from eval_pipeline.scoring.judge_prompt import Asked
from eval_pipeline.scoring.world_diff import _parsed as permissions  # pyright: ignore[reportPrivateUsage]
from eval_pipeline.specs.importers import biglaw_csv, biglaw_rubric, harvey_lab
from eval_pipeline.specs.yaml_file import YamlFile, parse_model
from eval_pipeline.vault.containers import TooMuch, Unpacker
from eval_pipeline.vault.redaction import Redactor

# 2,700 inputs: each reader has its own tests, which are fast
pytestmark = pytest.mark.slow

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["usage", "ok", "data:", "1" * 5000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
DEEP = b"[" * 100_000
LONG = b"9" * 5000


@st.composite
def changed(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 5))):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + size] = draw(st.binary(max_size=40))
            case 1:
                data[at:at] = data[at : at + size]
            case 2:
                del data[at : at + size]
            case _:
                data[at:at] = draw(st.sampled_from([b"\0", b"\n", b"\xff", b'"', b"..", b"/", b" ", b"-1", LONG, b"\\ud800"]))
    return bytes(data)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """With these keys or some of them, and others."""
    known = st.fixed_dictionaries({}, optional={name: one | JSON for name, one in fields.items()})
    return st.builds(lambda one, more: {**more, **one}, known, st.dictionaries(st.text(max_size=8), JSON, max_size=2))


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def tar_of(*members: tarfile.TarInfo, kind: int = tarfile.GNU_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=kind) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return raw.getvalue()


def named(name: str, size: int = 3, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


TARS = (
    tar_of(
        named("./result.json"),
        named("./files", 0, tarfile.DIRTYPE),
        named("./files/" + "n" * 150),
        named("./state/l", 0, tarfile.SYMTYPE, "/world/a"),
    ),
    tar_of(
        named("./../../up"),
        named("/abs"),
        named("./a", 0, tarfile.LNKTYPE, "b"),
        named("./f", 0, tarfile.FIFOTYPE),
        named("./d", 0, tarfile.BLKTYPE),
    ),
    tar_of(named("./" + "p" * 300), named("./é"), kind=tarfile.PAX_FORMAT),
)
BUNDLES = tuple(
    tar_of(named("out/result.json"), named("out/transcript.jsonl"), named("out/files/a"), named(name))
    for name in ("out/files/../../x", "logs/a")
)
LISTINGS = (
    b"f 644 5 result.json\0d 755 4096 files\0f 600 3 files/a\nb\0l 777 9 state/x\0/world/x\0p 644 0 files/fifo\0X 0 0 locked\0",
    b"f 644 5 ../../up\0f 644 5 a//b\0f 644 99999999999 big\0l 777 1 state/y\0",
)
HTTP = (
    b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n",
    b"GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc",
    b"CONNECT a:" + LONG + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://[::1]:80/ HTTP/1.1\r\nHost: [::1]\r\n\r\n",
)
MANIFEST = b"name: a\nimage: {base: host}\nagent: [bin/agent]\nsecrets: {agent: [A_KEY]}\negress: ['a.example:443']\nservices: {up: [u], ready: [r], down: [d]}\n"
CASE = b"id: c\nprompt: Say.\nrubric: {criteria: [{id: a, text: t, points: 1, check: {contains: x}}]}\nlimits: {wall_s: 5}\n"
EXPERIMENT = b"name: e\ndataset: d\napp: a\narms: [{name: x, ref: main, config: {m: 1}}]\ntrials: 2\nbudget: {cost_usd: 1}\n"
LAB = dumped(
    {
        "title": "t",
        "instructions": "i",
        "deliverables": {"a.docx": "a"},
        "criteria": [{"id": "C-1", "title": "t", "match_criteria": "m"}],
    }
)
CSV = b'Task,Document,Prompt\n1,a.pdf,"x\ny"\n'
RUBRIC = b"Substance:\n1. Names the lease (+2 points)\n  a. with its date (+1)\nStyle: N/A\nDeduct 1 point for each error (-1)\n"
EVENTS = (
    b'{"type":"usage","model":"m","input_uncached":1}\n{"type":"message"}\n\n{"type":"usage","model":"m","output":'
    + LONG
    + b"}\n"
)
SSE = b'data: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\ndata: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\ndata: [DONE]\n\n'
JOURNAL = b"c started 12.5\nc pid 99\nc exited 13.5 0\nother exited x y\n"
GREETING = bytes.fromhex(
    "16030100350100003103030000000000000000000000000000000000000000000000000000000000000000000002c02b0100000600000002000061"
)


INSPECT: dict[str, Any] = {
    "eval": {"task": "t", "model": "m", "dataset": {"sample_ids": [1, "b"]}, "config": {"epochs": 2}},
    "samples": [
        {
            "id": 1, "epoch": 1, "input": [{"role": "user", "content": "x"}], "total_time": 1.5, "limit": {"type": "time", "limit": 3},
            "scores": {"s": {"value": {"a": 1, "b": [1]}}, "t": {"value": "C"}}, "started_at": "2026-01-01T00:00:00+00:00",
            "model_usage": {"m": {"input_tokens": 3, "output_tokens": 2, "reasoning_tokens": 9, "total_cost": 0.5}},
        }
    ],
}  # fmt: skip
TRIAL: dict[str, Any] = {
    "task_name": "t", "trial_name": "t__1", "agent_info": {"name": "a", "version": "1", "model_info": {"name": "m"}},
    "agent_result": {"n_input_tokens": 5, "n_cache_tokens": 7, "n_output_tokens": 1, "cost_usd": 0.5},
    "verifier_result": {"rewards": {"reward": 1}}, "exception_info": {"exception_type": "E", "policy": {"has_valid_reward": True}},
    "agent_execution": {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:09Z"},
}  # fmt: skip


def zipped() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", "<a>sec</a><b>ret-value</b>")
        archive.writestr("../up", "x")
    return raw.getvalue()


def in_file(read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def reader(data: bytes) -> Any:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return read(Path(file.name))

    return reader


def transcript(data: bytes) -> None:
    reader = TranscriptReader()
    for start in range(0, len(data), 7):
        reader.feed(data[start : start + 7])
    reader.close()


def listed(data: bytes) -> None:
    for path in modal_bundle.choose(data).wanted:
        assert not {b"", b".", b".."} & set(path.split(b"/")), path


def rewritten(data: bytes) -> None:
    choice = modal_bundle.choose(LISTINGS[0] + b"f 644 3 a\0")
    with tempfile.TemporaryDirectory() as folder:
        told = modal_bundle.write(Path(folder, "b.tar.gz"), choice, io.BytesIO(data), io.BytesIO(b""))
        with tarfile.open(Path(folder, "b.tar.gz")) as tar:
            for member in tar:
                assert member.isreg() or member.isdir() or member.linkname.startswith("/world/")
                assert ".." not in member.name.split("/") and member.name.startswith(("out/", "logs/", "skipped.json"))
    assert told.size_bytes <= modal_bundle.MAX_BYTES


def request_of(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        client = Client(reader)
        asked(await client.request())
        async for _ in client.body():
            pass

    asyncio.run(read())


def greeting(data: bytes) -> None:
    seen = Greeting(("api.example.com", 443))
    for start in range(0, len(data), 11):
        seen.decided(data[start : start + 11])


def called(body: dict[str, Any]) -> None:
    for shape in model_shapes.SHAPES:
        model_rules.forbidden(shape, body)
        model_shapes.prepared(shape, body)
        model_shapes.usage_of(shape, "m", body.get("usage"))
    assert model_rules.most("m", body, 100).tokens >= 100
    model_rules.too_many_values(dumped(body))


def streamed(data: bytes) -> None:
    for shape in model_shapes.SHAPES:
        reader = model_shapes.StreamReader(shape, hide_usage=True)
        for start in range(0, len(data), 13):
            reader.feed(data[start : start + 13])
        reader.rest()
        model_shapes.usage_of(shape, "m", reader.told)


def replied(text: str) -> None:
    for each in (False, True):
        one = Asked(question_digest="q", request_digest="r", criterion="c", per_occurrence=each, text="t")
        vote = judge_reply.read_reply(text, one, judge_reply.Work(["the work says this"]))
        assert vote.verdict is None or vote.verdict >= 0


def unpacked(data: bytes) -> None:
    Unpacker(Redactor({"KEY": "secret-value"})).count(io.BytesIO(data))


def inspect_zip(sample: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", dumped({"eval": INSPECT["eval"]}))
        archive.writestr("samples/1_epoch_1.json", sample)
    return raw.getvalue()


def job_of(trial: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "t__1").mkdir()
        Path(folder, "t__1", "result.json").write_bytes(trial)
        Path(folder, "result.json").write_bytes(b'{"n_total_trials": 2}')
        read_harbor(Path(folder))


def yaml_of(model: Any) -> Callable[[bytes], Any]:
    return lambda data: parse_model(YamlFile.from_bytes(data, "x.yaml"), model)


USAGE = objects(
    type=st.just("usage"), model=st.text(max_size=10), input_uncached=st.integers(-5, 10**12), output=st.integers(), usage=JSON
)
CALL = objects(
    model=st.text(max_size=5),
    messages=st.lists(objects(role=st.just("user"), content=JSON), max_size=3),
    tools=st.lists(objects(type=st.sampled_from(["function", "mcp", "web_search"])), max_size=2),
    stream=st.booleans(),
    stream_options=JSON,
    max_tokens=st.integers(),
    n=st.integers(),
    usage=objects(prompt_tokens=st.integers(), input_tokens=st.integers(), completion_tokens_details=JSON),
)
REPLY = objects(
    criterion_id=st.just("c"), reasoning=st.text(), verdict=st.sampled_from(["met", "not_met", "cannot_assess"]),
    evidence=st.sampled_from(["the work", "no such"]), occurrences=st.lists(st.sampled_from(["the work", "says this"])),
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    name: str
    given: st.SearchStrategy[Any]
    read: Callable[[Any], Any]
    refuses: tuple[type[Exception], ...] = ()
    examples: int = 100


def mixed(*samples: bytes) -> st.SearchStrategy[bytes]:
    return changed(samples) | st.binary(max_size=300) | JSON.map(dumped) | st.sampled_from([DEEP, LONG, b""])


READERS = [
    Reader("transcript", mixed(EVENTS), transcript),
    Reader("usage event", USAGE, usage_from_event, (ValueError,)),
    Reader("result.json", mixed(b'{"status": "ok", "answer": "x", "error": null}'), parse_result),
    Reader(
        "output bundle",
        changed(tuple(map(gzip.compress, BUNDLES))),
        in_file(read_output),
        (tarfile.TarError, OSError, TypeError, EOFError),
    ),
    Reader(
        "output bundle, unpacked",
        changed(BUNDLES).map(gzip.compress),
        in_file(read_output),
        (tarfile.TarError, OSError, TypeError),
    ),
    Reader("listing of a Modal sandbox", mixed(*LISTINGS), listed, (SandboxError,)),
    Reader("tar stream of a Modal sandbox", mixed(*TARS), rewritten, (SandboxError,), 80),
    Reader("runner journal", mixed(JOURNAL), modal_scripts.read_journal),
    Reader(
        "tags of a sandbox", st.dictionaries(st.text(max_size=8), st.text("_abcdef019.", max_size=20)), modal_scripts.decode_tags
    ),
    Reader("proxy request", mixed(*HTTP), request_of, (Refused,)),
    Reader("endpoint", st.text(max_size=40) | st.sampled_from(["a:" + "9" * 5000, "[::1]:80"]), parse_endpoint, (SpecError,)),
    Reader("TLS greeting", mixed(GREETING), greeting, (Refused,)),
    Reader("model call", CALL, called),
    Reader("model stream", mixed(SSE), streamed),
    Reader(
        "judge's reply",
        REPLY.map(json.dumps) | mixed(b"{}").map(lambda data: data.decode(errors="replace")),
        replied,
        (judge_reply.Refused,),
    ),
    Reader("archives in deliverables", changed((zipped(),)) | st.binary(max_size=200), unpacked, (TooMuch,)),
    Reader("rows of a dump", mixed(b'{"id": 1, "a": "b"}\n{"id": 2}\n'), in_file(world_rows.index), (world_rows.Malformed,)),
    Reader("permissions of a dump", mixed(b"a: [b, c]\n"), in_file(permissions), (ValueError, RecursionError, yaml.YAMLError)),
    Reader(
        "cell key", st.text(max_size=60) | st.sampled_from(["e/w.c/a/0", "e/w.c/a/" + "9" * 5000]), CellKey.parse, (ValueError,)
    ),
    Reader("manifest", mixed(MANIFEST), yaml_of(AppManifest), (SpecError,), 40),
    Reader("case", mixed(CASE), yaml_of(CaseSpec), (SpecError,), 40),
    Reader("experiment", mixed(EXPERIMENT), yaml_of(ExperimentSpec), (SpecError,), 40),
    Reader("imported CSV", mixed(CSV), lambda data: biglaw_csv.parse_csv(data, "x.csv"), (SpecError,)),
    Reader(
        "imported rubric",
        mixed(RUBRIC).map(lambda data: biglaw_csv.Cell(data.decode(errors="replace"), 1)),
        lambda cell: biglaw_rubric.parse_rubric(cell, "x"),
        (SpecError,),
    ),
    Reader("Inspect log", mixed(dumped(INSPECT)), in_file(read_inspect), (SpecError,)),
    Reader(
        "sample of an Inspect log", mixed(dumped(INSPECT["samples"][0])).map(inspect_zip), in_file(read_inspect), (SpecError,)
    ),
    Reader("Inspect log, zipped", changed((inspect_zip(dumped(INSPECT["samples"][0])),)), in_file(read_inspect), (SpecError,)),
    Reader("trial of a Harbor job", mixed(dumped(TRIAL)), job_of, (SpecError,)),
    Reader("imported task", mixed(LAB), in_file(harvey_lab._parse), (SpecError,)),  # pyright: ignore[reportPrivateUsage]
]


_SLOW_AND_LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name.replace(" ", "-"))
def test_a_reader_answers_or_refuses(reader: Reader, request: pytest.FixtureRequest) -> None:
    thrown = 0

    @settings(max_examples=reader.examples, deadline=None, suppress_health_check=_SLOW_AND_LARGE)
    @given(reader.given)
    def throw(what: Any) -> None:
        nonlocal thrown
        thrown += 1
        try:
            reader.read(what)
        except reader.refuses:
            return

    throw()
    assert thrown >= reader.examples // 3
    request.node.user_properties.append(("fuzz", [1, thrown]))
