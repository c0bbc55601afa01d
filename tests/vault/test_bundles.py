"""Bundles with secrets in them, of the kinds that no honest agent leaves."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pytest

from eval_pipeline.scoring.bundle_tar import bundle_members
from eval_pipeline.vault import bundles, containers
from eval_pipeline.vault.bundles import Redacted, RedactionTask, redact_bundle
from eval_pipeline.vault.redaction import Redactor

KEY = "swordfish-0123456789"


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.TarFile(path, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def redact(path: Path) -> Redacted:
    """What is to be stored takes the bundle's place."""
    sealed = path.with_name("sealed")
    redacted = redact_bundle(
        RedactionTask(path=path, sealed=sealed, aside=path.with_name("aside"), redactor=Redactor({"K": KEY}))
    )
    assert path.exists() == (redacted == Redacted()), "a tar that holds a secret stays nowhere"
    sealed.replace(path)
    return redacted


def content(path: Path) -> dict[str, bytes]:
    return {member.name: stream.read() for member, stream in bundle_members(path) if stream is not None}


def archive(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as made:
        for name, text in entries:
            made.writestr(name, text)
    return data.getvalue()


def test_a_bundle_without_secrets_stays_byte_for_byte(tmp_path: Path) -> None:
    members = {"out/transcript.jsonl": b"x" * 3_000_000, "out/files/a.docx": archive(("a.xml", b"text")), "logs/o": b"\xff\x00"}
    path = packed(tmp_path / "b.tar", members)
    before = path.read_bytes()
    assert redact(path) == Redacted()
    assert pyarrow.input_stream(path, compression="zstd").read() == before


def test_texts_are_redacted_in_place_and_deliverables_go_aside(tmp_path: Path) -> None:
    members = {
        "out/transcript.jsonl": b"a" * ((1 << 20) - 5)
        + KEY.encode()
        + b"b" * (1 << 20),  # over the border of what is read at once
        "logs/agent.stdout": b"no secret",
        "out/files/a.txt": b"it is " + KEY.encode(),
        f"out/files/{KEY}": b"one",
        "out/files/[secret K]": b"two",
        "out/state/documents/a.docx": archive(("word/document.xml", f"<t>{KEY}</t>".encode())),
    }
    path = packed(tmp_path / "b.tar", members)
    found = redact(path)
    assert found.replaced == {"K": 2}  # in the transcript and in a name
    assert [(one.file, one.why) for one in found.put_aside] == [
        ("files/a.txt", "it holds the value of K"),
        ("state/documents/a.docx", "it holds the value of K"),
    ]
    assert found.put_aside[0].path.read_bytes() == members["out/files/a.txt"]
    assert content(path) == {
        "out/transcript.jsonl": b"a" * ((1 << 20) - 5) + b"[secret K]" + b"b" * (1 << 20),
        "logs/agent.stdout": b"no secret",
        "out/files/[secret K]": b"one",
        "out/files/[secret K].2": b"two",
    }


def test_what_can_not_be_looked_through_goes_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_UNPACKED_BYTES", 1 << 20)
    deep = archive(("x", b"text"))
    for _ in range(containers.MAX_DEPTH):
        deep = archive(("inner.zip", deep), method=zipfile.ZIP_STORED)
    members = {
        "out/files/bomb.xlsx": archive(("a", bytes(1 << 19)), ("b", bytes(1 << 20))),
        "out/files/deep.zip": deep,
        "out/files/broken.zip": archive(("a", b"text"))[:-30],
        "out/files/fine.zip": archive(("a", bytes(1 << 19))),
    }
    path = packed(tmp_path / "b.tar", members)
    aside = {one.file: one.why for one in redact(path).put_aside}
    assert set(aside) == {"files/bomb.xlsx", "files/deep.zip"}
    assert all(why.startswith("it could not be looked through for secrets: ") for why in aside.values())
    assert set(content(path)) == {"out/files/broken.zip", "out/files/fine.zip"}


def test_a_word_cut_into_elements_is_found_in_a_document(tmp_path: Path) -> None:
    cut = f"<w:t>{KEY[:7]}</w:t></w:r><w:r><w:t xml:space='preserve'>{KEY[7:]}</w:t>".encode()
    path = packed(tmp_path / "b.tar", {"out/files/a.docx": archive(("word/document.xml", b"<w:p>" * 300_000 + cut))})
    assert [one.file for one in redact(path).put_aside] == ["files/a.docx"]


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_an_archive_that_breaks_in_the_middle_holds_what_came_before(tmp_path: Path, method: int) -> None:
    whole = archive(("a.txt", KEY.encode()), ("b.txt", b"text" * 500), method=method)
    start = whole.index(b"b.txt") + 5
    members = {f"out/files/{at}.zip": whole[:at] + b"\xff\xff\xff" + whole[at + 3 :] for at in range(start, start + 12)}
    path = packed(tmp_path / "b.tar", members)
    assert {one.file for one in redact(path).put_aside} == {name.removeprefix("out/") for name in members}


def test_all_archives_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_BUNDLE_BYTES", 2 << 20)
    members = {f"out/files/{n}.zip": archive(("a", bytes(1 << 19))) for n in range(6)}
    path = packed(tmp_path / "b.tar", members)
    assert [one.file for one in redact(path).put_aside] == ["files/4.zip", "files/5.zip"]


def test_what_is_put_aside_is_bounded_and_the_rest_is_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_ASIDE", 2)
    members = {f"out/files/{n}": KEY.encode() for n in range(5)} | {"out/files/clean": b"text"}
    path = packed(tmp_path / "b.tar", members)
    found = redact(path)
    assert (len(found.put_aside), found.n_left_out) == (2, 3)
    assert len(list((tmp_path / "aside").iterdir())) == 2
    assert content(path) == {"out/files/clean": b"text"}
