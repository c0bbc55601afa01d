"""Reading what an agent left: transcripts cut anywhere, and bundles with anything in them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eval_pipeline.domain.usage import Total, Usage, counts_from_event, usage_from_event
from eval_pipeline.runner import output
from eval_pipeline.runner.output import TranscriptReader, read_output
from eval_pipeline.runner.usage_lines import counts_from_line
from eval_pipeline.scoring.bundle_tar import bundle_members

USAGE = b'{"type": "usage", "model": "m", "input_uncached": 7, "output": 3}'
LINES = [
    USAGE,
    b'{"type": "usage", "model": "n", "output": 1, "calls": 2}',
    b'{"type": "usage", "model": "m", "output": -1}',
    b'{"type": "message", "text": "the \\"usage\\" of words"}',
    b'{"type": "message"}',
    b"",
    b"  \r",
    b"plain words",
    b'"usage"',
    b'["usage"]',
    b'{"usage"',
    b'{"usage"}',
    b"\xff\x00\xfe",
    b'{"type": "usage", "model": "\xff"}',
    b'{"type": "usage", "model": "a\\u0000b"}',
    b'{"type": "usage", "n": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"type": "usage", "model": "m", "output": ' + b"9" * 5000 + b"}",
]


def read(*chunks: bytes) -> tuple[list[Usage], int, int, int]:
    reader = TranscriptReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return reader.usages, reader.calls, reader.n_events, reader.bad_lines


@given(
    st.lists(st.sampled_from(LINES) | st.binary(max_size=40), max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=8),
)
@example([USAGE, USAGE], False, [1, 1])
def test_how_a_transcript_is_cut_changes_nothing(lines: list[bytes], ended: bool, cuts: list[int]) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    assert read(*(text[start:end] for start, end in pairwise(edges))) == read(text)


class OneByOne(TranscriptReader):
    """Every line looked at for itself."""

    def feed(self, chunk: bytes) -> None:
        *ended, begun = chunk.split(b"\n")
        for line in ended:
            self._piece(line, ended=True)
        self._piece(begun, ended=False)


AT_BORDERS = st.lists(
    st.sampled_from(
        [b"{", b"}", b"\n", b"}\n{", b"\r", b" ", b"\x00", b'"usage"', b'{"a":1}', b'{"a":1}\n', USAGE, USAGE + b"\n"]
    ),
    max_size=30,
).map(b"".join)


@given(AT_BORDERS | st.binary(max_size=100), st.lists(st.integers(0, 300), max_size=6))
def test_lines_are_counted_together_as_they_are_one_by_one(text: bytes, cuts: list[int]) -> None:
    slow = OneByOne()
    slow.feed(text)
    slow.close()
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert read(*pieces) == (slow.usages, slow.calls, slow.n_events, slow.bad_lines)


JSON = st.none() | st.booleans() | st.integers() | st.integers(0, 9) | st.floats() | st.text(max_size=9) | st.just([])
NAMES = st.sampled_from([*Usage.model_fields, "type", "other"])


@given(
    st.dictionaries(NAMES, JSON) | st.dictionaries(NAMES, st.integers(0, 10**9 + 1)),
    st.none() | st.text(min_size=1, max_size=220),
)
def test_counts_are_those_of_the_whole_model(event: dict[str, Any], model: str | None) -> None:
    event = event if model is None else {**event, "model": model}
    try:
        usage = usage_from_event(event)
    except ValueError as error:
        with pytest.raises(ValueError) as raised:
            counts_from_event(event)
        assert str(raised.value) == str(error)
    else:
        total = Total()
        name, counts = counts_from_event(event)
        total.add(counts)
        assert total.usage(name) == usage


@given(
    st.dictionaries(NAMES, JSON) | st.dictionaries(NAMES, st.integers(0, 10**9 + 1)),
    st.sampled_from(
        [b"", b',"model":"m"', b',"output":2', b',"output":-1', b',"x":NaN', b',"x":01', b',"x":"\xff"', b',"x":"\t"']
    ),
    st.sampled_from([b"}", b"}}", b" }", b",}", b"}\x00"]),
)
@example({"type": "usage", "model": "m", "reasoning": 2}, b"", b"}")
@example({"type": "usage", "model": "a\x00b"}, b"", b"}")
@example({"type": "usage", "model": "m", "output": 3}, b',"output":2', b"}")
def test_a_plain_line_is_the_event_that_it_is_read_as(event: dict[str, Any], more: bytes, end: bytes) -> None:
    line = json.dumps({"type": "usage", **event}).encode()[:-1] + more + end
    if (plain := counts_from_line(line)) is not None:
        found = json.loads(line)
        name, counts = counts_from_event(found)
        assert (found["type"], plain) == ("usage", (name, counts))


def test_most_usage_lines_are_plain() -> None:
    assert counts_from_line(USAGE) == counts_from_event(json.loads(USAGE)) == ("m", (7, 0, 0, 0, 3, 0, 1))
    assert counts_from_line(USAGE.replace(b"usage", b"usages")) is None
    assert (
        counts_from_line(USAGE[:-1] + b', "x": [' + b"[]," * 6_000 + b"[]]}") is None
    )  # its parser needs a hundred times as much


@given(st.sampled_from(["utf-8", "utf-16-le", "utf-32-le"]), st.binary(max_size=9), st.text(max_size=9))
@example("utf-8", b"\xed\xa0\x80", "")
@example("utf-8", b"\xff", "")
def test_a_line_is_the_json_it_was(encoding: str, noise: bytes, text: str) -> None:
    model = json.dumps({"type": "usage", "model": "m", "x": text}, ensure_ascii=False).encode(encoding, "surrogatepass")
    for line in (model, b'{"usage": "' + noise + b'"}', b'{"usage": 1}' + noise + b"}", b"{\x00" + noise + b"}"):
        try:
            event = json.loads(line)
        except ValueError:
            with pytest.raises(ValueError):
                output.as_object(line)
        else:
            assert output.as_object(line) == event


def test_every_line_is_an_event_or_bad() -> None:
    usages, calls, n_events, bad_lines = read(b"\n".join(LINES))
    assert usages == [Usage(model="m", input_uncached=7, output=3), Usage(model="n", output=1, calls=2)]
    assert (calls, n_events, bad_lines) == (2, 4, 11)


@pytest.mark.parametrize("size", [output.LINE_MAX_BYTES - 1, output.LINE_MAX_BYTES, output.LINE_MAX_BYTES + 1])
@pytest.mark.parametrize("chunk", [2**20, 2**26], ids=["pieces", "whole"])
def test_a_line_is_too_long_wherever_it_is_cut(size: int, chunk: int) -> None:
    head = b'{"type": "usage", "model": "m", "output": 1, "x": "'
    text = head + b"x" * (size - len(head) - 2) + b'"}\n' + USAGE
    fits = size <= output.LINE_MAX_BYTES
    usages, calls, n_events, bad_lines = read(*(text[at : at + chunk] for at in range(0, len(text), chunk)))
    assert (calls, n_events, bad_lines) == (2, 2, 0) if fits else (1, 1, 1)
    assert sum(usage.output for usage in usages) == (4 if fits else 3)


def test_a_line_without_end_is_not_kept() -> None:
    reader = TranscriptReader()
    for _ in range(40):
        reader.feed(b"x" * 2**20)
    reader.feed(b"\n" + USAGE)
    reader.close()
    assert (reader.calls, reader.bad_lines) == (1, 1)


def test_models_without_number_are_not_kept() -> None:
    usages, calls, _, bad_lines = read(*(f'{{"type": "usage", "model": "m{n}"}}\n'.encode() for n in range(500)))
    assert (len(usages), calls, bad_lines) == (output.MODELS_MAX, output.MODELS_MAX, 500 - output.MODELS_MAX)


def bundle(folder: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    path = folder / "bundle.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_a_bundle(tmp_path: Path) -> None:
    result = json.dumps({"status": "ok", "answer": "yes"}).encode()
    found = read_output(
        bundle(
            tmp_path,
            ("out/transcript.jsonl", USAGE),
            ("out/result.json", result),
            ("out/files/a/b.txt", b"b"),
            ("out/other", b""),
        )
    )
    assert (found.result.status, found.result.answer) == ("ok", "yes")
    assert found.usages == [Usage(model="m", input_uncached=7, output=3)]
    assert (found.calls, found.n_events, found.bad_lines) == (1, 1, 0)
    assert (found.files, found.too_large) == ({"a/b.txt": b"b"}, [])


def test_an_empty_bundle_has_no_result(tmp_path: Path) -> None:
    found = read_output(bundle(tmp_path))
    assert (found.result.status, found.result.error) == (None, "wrote no result.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 10**5,
        b"9" * 10**4,
        b'{"status": "o',
        b'"ok"',
        b"NaN",
        b'{"status": "ok", "answer": 1}',
        b"\0" * 100,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_results_that_cannot_be_read_are_the_agents_own(tmp_path: Path, content: bytes) -> None:
    found = read_output(bundle(tmp_path, ("out/result.json", content)))
    assert found.result.status is None
    assert found.result.error is not None
    assert len(found.result.error) < 3000


def test_what_an_agent_says_is_not_kept_at_any_length(tmp_path: Path) -> None:
    content = json.dumps({"status": "error", "error": "x" * 10**6}).encode()
    assert len(read_output(bundle(tmp_path, ("out/result.json", content))).result.error or "") < 3000


def test_members_that_are_no_files_count_for_nothing(tmp_path: Path) -> None:
    path = bundle(
        tmp_path,
        special("out/result.json", tarfile.SYMTYPE, "/etc/passwd"),
        special("out/files/link", tarfile.SYMTYPE, "../../result.json"),
        special("out/files/pipe", tarfile.FIFOTYPE),
        special("out/files/null", tarfile.CHRTYPE),
        special("out/files", tarfile.DIRTYPE),
        ("result.json", b'{"status": "ok"}'),
        ("/out/result.json", b'{"status": "ok"}'),
        ("out/../out/result.json", b'{"status": "ok"}'),
    )
    found = read_output(path)
    assert found.result.status is None
    assert found.files == {}


@pytest.mark.slow
def test_large_files_are_named_and_not_read(tmp_path: Path) -> None:
    each, most = output.FILE_MAX_BYTES, output.FILES_MAX_BYTES
    members = [(f"out/files/{n}", bytes(each)) for n in range(most // each + 1)]
    found = read_output(bundle(tmp_path, ("out/files/huge", bytes(each + 1)), *members))
    assert sum(map(len, found.files.values())) == most
    assert found.too_large == ["huge", str(most // each)]


def test_a_large_result_is_not_read(tmp_path: Path) -> None:
    found = read_output(bundle(tmp_path, ("out/result.json", b" " * (output.RESULT_MAX_BYTES + 1))))
    assert str(output.RESULT_MAX_BYTES) in (found.result.error or "")


def test_names_are_whatever_bytes_they_are(tmp_path: Path) -> None:
    names = ["\udcff", "../../etc/passwd", "a\nb", "x" * 300, "é", "-rf"]
    found = read_output(bundle(tmp_path, *((f"out/files/{name}", b"x") for name in names)))
    assert sorted(found.files) == sorted(names)


def test_a_broken_bundle_is_an_error_of_ours(tmp_path: Path) -> None:
    """At whatever byte it is cut or changed, it raises what is told, or reads as far as it is whole."""
    whole = bundle(tmp_path, ("out/transcript.jsonl", USAGE * 50), ("out/result.json", b'{"status": "ok"}')).read_bytes()
    broken = tmp_path / "broken"
    n_refused = 0
    for at in range(len(whole)):
        for content in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            broken.write_bytes(content)
            try:
                read_output(broken)
            except (tarfile.TarError, OSError, TypeError):  # the last when it ends within the header of gzip
                n_refused += 1
    assert n_refused > len(whole) // 2


def raw_tar(**fields: bytes) -> bytes:
    """A header of one's own, with its sum made right."""
    places = {"name": 0, "size": 124, "type": 156}
    header = bytearray(512)
    header[100:108], header[257:265], header[148:156], header[156:157] = b"0000644\0", b"ustar\x0000", b" " * 8, b"0"
    for name, value in fields.items():
        header[places[name] : places[name] + len(value)] = value
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


@pytest.mark.parametrize(
    "content",
    [
        raw_tar(name=b"out/result.json", size=b"77777777777\0"),
        raw_tar(name=b"out/files/x", size=b"\x80" + b"\xff" * 11),
        raw_tar(name=b"out/files/x", size=b"\xff" * 12),
        raw_tar(name=b"out/files/x", size=b"9zz\0"),
        raw_tar(name=b"pax", size=b"00000000012\0", type=b"x") + b"999999999 path=x\n".ljust(512, b"\0"),
        raw_tar(name=b"pax", size=b"00000000012\0", type=b"x") + b"no pax at all".ljust(512, b"\0"),
    ],
    ids=["long", "huge", "negative", "no-number", "pax-long", "pax-none"],
)
def test_hostile_headers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(gzip.compress(content))
    found: Any = None
    try:
        found = read_output(path)
    except (tarfile.TarError, OSError, TypeError):  # the last when it ends within the header of gzip
        return
    assert found.result.status is None


class Counted(io.BytesIO):
    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_what_a_header_claims_is_not_looked_for_beyond_the_end(packed: Callable[[bytes], bytes]) -> None:
    """In steps of some KiB, 8 GiB would take seconds."""
    bundle = Counted(packed(raw_tar(name=b"out/result.json", size=b"77777777777\0")))
    with pytest.raises(tarfile.ReadError, match="ends before"):
        list(bundle_members(bundle))
    assert bundle.reads < 1000
