"""Secrets in whatever spelling, found and replaced; every spelling is made by somebody else's encoder."""

from __future__ import annotations

import base64
import binascii
import html
import json
import pickle
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eval_pipeline.vault.redaction import MIN_BYTES, Redactor

KEY = "sk-ant-api03-Zk3q_7yXw/9+uVbN=="
SPELLINGS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "url": quote,
    "url, every reserved one": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "lower case url": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "every character in url": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "json": json.dumps,
    "json as it is": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps(text)),
    "json in json in json": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "every character in json": lambda text: "".join(
        f"\\u{int.from_bytes(text.encode('utf-16-be')[i : i + 2], 'big'):04x}" for i in range(0, len(text.encode("utf-16-be")), 2)
    ),
    "html": html.escape,
    "xml": escape,
    "xml attribute": quoteattr,
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "hex with spaces": lambda text: text.encode().hex(" "),
    "hex with colons": lambda text: text.encode().hex(":"),
    "python": repr,
}
BASE64: dict[str, Callable[[bytes], bytes]] = {
    "standard": base64.b64encode,
    "url": base64.urlsafe_b64encode,
    "lines of 76": base64.encodebytes,
    "lines of 76, json": lambda data: json.dumps(base64.encodebytes(data).decode()).encode(),
    "one line": lambda data: binascii.b2a_base64(data),
    "in a url": lambda data: quote(base64.b64encode(data), safe="").encode(),
}
settings.register_profile("steady", deadline=None, max_examples=60)
settings.load_profile("steady")
secrets_of = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=MIN_BYTES, max_size=60) | st.text(
    "abAB01", min_size=MIN_BYTES, max_size=300
)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


@given(secret=secrets_of, name=st.sampled_from(sorted(SPELLINGS)), around=st.tuples(st.text(max_size=20), st.text(max_size=20)))
@example(secret='!"$%&/()', name="xml attribute", around=("", ""))
@example(secret="0!0!\n0!0!:", name="xml attribute", around=("", ""))
@example(secret="0000000\x80", name="python", around=("", ""))
@example(secret="\\\\\\\\\\\\\\\\", name="json in json", around=("", ""))
def test_it_is_found_however_it_is_spelt(secret: str, name: str, around: tuple[str, str]) -> None:
    spelt = SPELLINGS[name](secret)
    found = Counter[str]()
    text = b"".join(Redactor({"K": secret}).stream([f"{around[0]}<{spelt}>{around[1]}".encode()], found))
    assert found["K"] >= 1
    assert spelt.encode().strip(b"\"'") not in text and secret.encode() not in text


@pytest.mark.slow
@given(secret=secrets_of, before=st.binary(max_size=200), after=st.binary(max_size=100), name=st.sampled_from(sorted(BASE64)))
def test_it_is_found_in_base64_wherever_it_stands(secret: str, before: bytes, after: bytes, name: str) -> None:
    found = Counter[str]()
    redacted = b"".join(Redactor({"K": secret}).stream([BASE64[name](before + secret.encode() + after)], found))
    assert found["K"] >= 1
    groups = 4 * (len(secret.encode()) // 3 - 1)
    for shift in range(3):  # what its neighbours have no part in
        code = base64.b64encode(bytes(shift) + secret.encode())[4 : 4 + groups]
        assert len(code) < 8 or code not in redacted.replace(b"\n", b"")


@pytest.mark.slow
@given(
    values=st.lists(secrets_of, min_size=1, max_size=3),
    pieces=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["", *SPELLINGS, *(f"b64 {n}" for n in BASE64)]), st.binary(max_size=12)),
        max_size=8,
    ),
    places=st.lists(st.integers(0, 10_000), max_size=30),
)
@example(values=["aaaaaaaaaaaa", "aaaaaaaaa"], pieces=[(0, "raw", b"aaaaaa"), (1, "raw", b"")], places=[1, 2, 3, 9, 14])
def test_how_a_stream_is_cut_changes_nothing(values: list[str], pieces: list[tuple[int, str, bytes]], places: list[int]) -> None:
    text = b""
    for which, name, noise in pieces:
        value = values[which % len(values)]
        text += BASE64[name[4:]](noise + value.encode()) if name.startswith("b64 ") else b""
        text += SPELLINGS[name](value).encode() if name in SPELLINGS else b""
        text += noise
    named = {f"K{i}": value for i, value in enumerate(values)}
    whole = Redactor(named).bytes(text)
    assert b"".join(Redactor(named, step_bytes=1).stream(cut(text, places))) == whole


def test_a_long_stream_gives_what_it_gives_as_a_whole_and_holds_little_of_it() -> None:
    redactor = Redactor({"K": KEY}, step_bytes=4096)
    line = json.dumps({"text": "x" * 900 + KEY}).encode() + b"\n"
    read_bytes = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read_bytes
        for _ in range(1000):
            read_bytes += len(line)
            yield line

    most, written_bytes, out = 0, 0, b""
    for chunk in redactor.stream(chunks()):
        most = max(most, read_bytes - written_bytes)
        written_bytes += len(chunk) + chunk.count(b"[secret K]") * (len(KEY) - len("[secret K]"))
        out += chunk
    assert written_bytes == read_bytes == 1000 * len(line)
    assert out.count(b"[secret K]") == 1000 and out == redactor.bytes(line * 1000)
    assert most <= 4096 + 2 * redactor.reach + 2 * len(line)


@pytest.mark.slow
@given(st.binary(max_size=3000))
def test_a_text_without_secrets_is_unchanged(data: bytes) -> None:
    values = {"K": KEY, "P": "correct horse battery staple"}
    assert b"".join(Redactor(values, step_bytes=1).stream(cut(data, range(0, 3000, 7)))) == data
    text = data.decode("utf-8", "surrogateescape")
    assert Redactor(values).text(text) == text


def test_the_tools_of_a_shell() -> None:
    def said(*argv: str) -> bytes:
        return subprocess.run(argv, input=b"some text before " + KEY.encode(), capture_output=True, check=True).stdout

    redactor = Redactor({"KEY": KEY})
    for argv in (["base64"], ["base64", "-w", "20"], ["od", "-An", "-v", "-tx1"], ["cat"]):
        assert b"[secret KEY]" in redactor.bytes(said(*argv)), argv


def test_the_name_takes_the_place_and_the_longest_value_wins() -> None:
    redactor = Redactor({"SHORT": "swordfish", "LONG": "swordfish-and-more", "TINY": "abc", "NONE": ""})
    assert redactor.text("a swordfish-and-more, a swordfish.") == "a [secret LONG], a [secret SHORT]."
    assert redactor.too_short == ["TINY"] and redactor.text("abc") == "abc"
    assert redactor.any({"swordfish": ["x", ("swordfish", 3)]}) == {"[secret SHORT]": ["x", ["[secret SHORT]", 3]]}
    assert not Redactor({"TINY": "abc"}) and Redactor({}).text("x") == "x"
    assert redactor.count([b"swordf", b"ish swordfish"]) == {"SHORT": 2}


def test_what_is_no_text_is_redacted_and_stays() -> None:
    odd = "\udcff\udcfe-not-utf-8"
    assert Redactor({"K": odd}).bytes(b"<\xff\xfe-not-utf-8>") == b"<[secret K]>"
    assert Redactor({"K": KEY}).text(f"\ud800 {KEY}") == "\ud800 [secret K]"


def test_a_line_of_json_stays_json() -> None:
    for value in (KEY, "ends with a backslash \\", '"quoted" and more', "two\nlines of it"):
        line = json.dumps({"text": f"it is {value}"})
        assert json.loads(Redactor({"K": value}).text(line)) == {"text": "it is [secret K]"}


def test_a_part_of_a_long_value_is_found() -> None:
    pem = "-----BEGIN KEY-----\n" + "\n".join(base64.b64encode(bytes(range(i, i + 48))).decode() for i in range(20)) + "\n"
    redactor = Redactor({"PEM": pem})
    assert redactor.text(pem).replace("[secret PEM]", "") == ""
    assert redactor.text(pem.replace("\n", "\\n")).replace("[secret PEM]", "") == ""
    assert "[secret PEM]" in redactor.text(pem[300:900])


def test_it_goes_to_another_process_and_shows_nothing() -> None:
    redactor = Redactor({"K": KEY})
    assert pickle.loads(pickle.dumps(redactor)).text(KEY) == "[secret K]"
    assert KEY not in repr(redactor)


@pytest.mark.parametrize("n_secrets", [1, 20])
def test_its_reach_is_bounded(n_secrets: int) -> None:
    values = {f"K{i}": f"{i:02}" + base64.b64encode(bytes(range(i, i + 40))).decode() for i in range(n_secrets)}
    assert Redactor(values).reach < 8192
