"""The world_diff of two bundles: what differs is told, what can't be compared is a problem, and equal states differ in nothing."""

from __future__ import annotations

import io
import json
import pickle
import random
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from hypothesis import given, settings
from hypothesis import strategies as st
from support.states import EMPTY, jsonl, snapshot, state_bundle

from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_diff import MAX_ENTRIES, MAX_PART_BYTES, WorldDiff
from eval_pipeline.scoring import world_rows
from eval_pipeline.scoring.world_diff import world_diff_of

pytestmark = pytest.mark.slow

Files = Mapping[str, bytes]


def diff(
    folder: Path,
    before: Files,
    after: Files,
    *,
    world: Files | None = None,
    manifest: SnapshotManifest = EMPTY,
    **after_more: Any,
) -> WorldDiff:
    made = snapshot(folder / "world", world) if world else manifest
    old = state_bundle(folder / "before.tar.gz", before)
    new = state_bundle(folder / "after.tar.gz", after, **after_more)
    found = world_diff_of(new, old, folder / "world", made)
    assert WorldDiff.model_validate_json(found.model_dump_json()) == found
    assert pickle.loads(pickle.dumps(found)) == found, "it comes from a worker process"
    assert sorted(path.name for path in folder.iterdir() if path.name != "world") == ["after.tar.gz", "before.tar.gz"]
    return found


def problems(found: WorldDiff) -> list[tuple[str, str, str]]:
    return [(problem.part, problem.side, problem.where) for problem in found.problems.entries]


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


RULES = {"default": ["ann", "bob"], "rules": [{"match": "documents/secret*", "readers": ["ann"]}]}
STATE = {
    "documents/lease.md": b"Rent: 100\nNotice: 60 days\nEnd\n",
    "documents/secret.txt": b"hush\n",
    "database/reviews.jsonl": jsonl({"id": "t-1", "value": "Kiel", "n": 1}, {"id": "t-2", "value": "Hamburg"}),
    "permissions": json.dumps(RULES).encode(),
    "blobs/scan.bin": b"\x00\x01",
}

names = st.sampled_from(
    ["documents/a.txt", "documents/b.md", "documents/c/d", "blobs/x", "blobs/y", "database/t.jsonl", "database/u.jsonl"]
)
rows = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.text(max_size=3) | st.none(), max_size=3), max_size=4
).map(lambda found: [{"id": number, **row} if number % 2 else row for number, row in enumerate(found)])
users = st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=3)
permissions = st.fixed_dictionaries(
    {
        "default": users,
        "rules": st.lists(
            st.fixed_dictionaries({"match": st.sampled_from(["*", "documents/*", "blobs/x"]), "readers": users}), max_size=3
        ),
    }
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, bytes]:
    found = {"permissions": json.dumps(draw(permissions)).encode()}
    for name in draw(st.sets(names)):
        found[name] = jsonl(*draw(rows)) if name.startswith("database") else draw(st.text("ab\n", max_size=8)).encode()
    return found


def compared(before: Files, after: Files) -> WorldDiff:
    with tempfile.TemporaryDirectory() as folder:
        return diff(Path(folder), before, after)


@settings(max_examples=40, deadline=None)
@given(states(), st.randoms())
def test_a_state_differs_in_nothing_from_itself_in_any_order(state: dict[str, bytes], shuffle: random.Random) -> None:
    other = dict(shuffle.sample(list(state.items()), len(state)))
    for name in [name for name in other if name.startswith("database")]:
        lines = other[name].splitlines(keepends=True)
        shuffle.shuffle(lines)
        other[name] = b"".join(lines)
    found = compared(state, other)
    assert found == WorldDiff()
    assert found.unchanged


@settings(max_examples=60, deadline=None)
@given(states(), states(), st.randoms())
def test_counts_are_those_of_the_swapped_states_and_order_changes_nothing(
    before: dict[str, bytes], after: dict[str, bytes], shuffle: random.Random
) -> None:
    there, back = compared(before, after), compared(after, before)
    for one, other in [
        (there.documents, back.documents),
        (there.rows, back.rows),
        (there.blobs, back.blobs),
        (there.permissions.rules, back.permissions.rules),
    ]:
        assert (one.counts.added, one.counts.removed) == (other.counts.removed, other.counts.added)
        assert one.counts.changed == other.counts.changed
    effects = {entry.path: (entry.gained, entry.lost) for entry in there.permissions.effect.entries}
    assert effects == {entry.path: (entry.lost, entry.gained) for entry in back.permissions.effect.entries}
    shuffled = dict(shuffle.sample(list(after.items()), len(after)))
    assert compared(before, shuffled) == there


def test_every_part_is_told(tmp_path: Path) -> None:
    after = {
        "documents/lease.md": b"Rent: 110\nNotice: 60 days\nEnd\n",
        "documents/hidden.txt": b"hush\n",
        "database/reviews.jsonl": jsonl(
            {"id": "t-2", "value": "Hamburg"}, {"id": "t-1", "value": "Rostock", "n": 1}, {"value": "x"}
        ),
        "permissions": json.dumps({"default": ["ann", "bob"], "rules": []}).encode(),
        "blobs/scan.bin": b"\x00\x02",
    }
    found = diff(tmp_path, STATE, after)
    assert found.summary() == {"n_documents": 3, "n_rows": 2, "n_readers": 1, "n_rules": 1, "n_blobs": 1, "n_problems": 0}
    new, lease, old = found.documents.entries
    assert (new.path, new.change, new.same_as) == ("documents/hidden.txt", "added", "documents/secret.txt")
    assert (old.path, old.change, old.same_as) == ("documents/secret.txt", "removed", "documents/hidden.txt")
    assert lease.text is not None
    assert [hunk.lines for hunk in lease.text.hunks] == [("-Rent: 100", "+Rent: 110", " Notice: 60 days")]
    whole, changed = sorted(found.rows.entries, key=lambda row: row.change)
    assert (changed.key, changed.fields, changed.before, changed.after) == (
        "t-1",
        ("value",),
        {"id": "t-1", "value": "Kiel", "n": 1},
        {"id": "t-1", "value": "Rostock", "n": 1},
    )
    assert (whole.key, whole.change, whole.after) == (None, "added", {"value": "x"})
    (effect,) = found.permissions.effect.entries
    assert (effect.path, effect.gained, effect.lost) == ("documents/secret.txt", ("bob",), ())
    (rule,) = found.permissions.rules.entries
    assert (rule.change, json.loads(rule.rule)) == ("removed", RULES["rules"][0])
    (blob,) = found.blobs.entries
    assert blob.before is not None
    assert blob.after is not None
    assert (blob.before.size, blob.after.size, blob.before.sha256 == blob.after.sha256) == (2, 2, False)


def test_rules_that_change_places_change_who_reads(tmp_path: Path) -> None:
    rules = [{"match": "documents/*", "readers": ["ann"]}, {"match": "documents/lease*", "readers": ["eve"]}]
    before = {**STATE, "permissions": json.dumps({"default": [], "rules": rules}).encode()}
    after = {**STATE, "permissions": json.dumps({"default": [], "rules": rules[::-1]}).encode()}
    found = diff(tmp_path, before, after).permissions
    assert found.reordered
    assert found.rules.counts.total == 0
    assert [(entry.path, entry.gained, entry.lost) for entry in found.effect.entries] == [
        ("documents/lease.md", ("eve",), ("ann",))
    ]


def test_links_stand_for_files_of_the_snapshot(tmp_path: Path) -> None:
    world = {"documents/lease.md": STATE["documents/lease.md"], "documents/b.txt": b"b", "permissions.yaml": b"default: [ann]\n"}
    manifest = snapshot(tmp_path / "world", world)
    links = {"documents/lease.md": "/world/documents/lease.md", "permissions": "/world/permissions.yaml"}
    old = state_bundle(tmp_path / "old", {"documents/b.txt": b"b"}, links)
    new = state_bundle(
        tmp_path / "new",
        {"documents/lease.md": b"Rent: 1\n", "permissions": b'{"default": ["ann", "eve"]}'},
        {"documents/b.txt": "/world/documents/b.txt"},
    )
    found = world_diff_of(new, old, tmp_path / "world", manifest)
    assert found.problems.entries == ()
    (lease,) = found.documents.entries
    assert lease.text is not None
    assert lease.text.hunks[0].lines == ("-Rent: 100", "-Notice: 60 days", "-End", "+Rent: 1")
    assert {entry.path: entry.gained for entry in found.permissions.effect.entries} == {
        "documents/b.txt": ("eve",),
        "documents/lease.md": ("eve",),
    }


def tracked_docx(*, accepted: bool = False) -> bytes:
    document = docx.Document()
    paragraph = document.add_paragraph("The notice period is ")
    if accepted:
        paragraph.add_run("ninety days.")
    else:
        for xml in (
            '<w:del {} w:id="1" w:author="Agent" w:date="2026-01-01T00:00:00Z"><w:r><w:delText>sixty</w:delText></w:r></w:del>',
            '<w:ins {} w:id="2" w:author="Agent" w:date="2026-01-01T00:00:00Z"><w:r><w:t>nine</w:t></w:r></w:ins>',
            '<w:ins {} w:id="3" w:author="Agent" w:date="2026-01-01T00:00:00Z"><w:r><w:t>ty</w:t></w:r></w:ins>',
            "<w:r {}><w:t> days.</w:t></w:r>",
        ):
            paragraph._p.append(parse_xml(xml.format(nsdecls("w"))))
        document.add_comment(paragraph.runs, text="Ask the landlord", author="Ann", initials="A")
    return saved(document)


def plain_docx(text: str) -> bytes:
    document = docx.Document()
    document.add_paragraph(text)
    return saved(document)


def test_tracked_changes_and_comments_of_a_docx(tmp_path: Path) -> None:
    before = {"documents/lease.docx": plain_docx("The notice period is sixty days.")}
    (changed,) = diff(tmp_path, before, {"documents/lease.docx": tracked_docx()}).documents.entries
    assert changed.text is not None
    assert changed.text.hunks[0].lines == ("-The notice period is sixty days.", "+The notice period is ninety days.")
    assert {(note.change, note.kind, note.author, note.text) for note in changed.notes} == {
        ("added", "insertion", "Agent", "ninety"),
        ("added", "deletion", "Agent", "sixty"),
        ("added", "comment", "Ann", "Ask the landlord"),
    }
    (changed,) = diff(
        tmp_path, {"documents/lease.docx": tracked_docx()}, {"documents/lease.docx": tracked_docx(accepted=True)}
    ).documents.entries
    assert changed.text is None, "the text reads the same, the changes are accepted"
    assert {note.change for note in changed.notes} == {"removed"}


def book(value: Any) -> bytes:
    made = openpyxl.Workbook()
    sheet = made.active
    assert sheet is not None
    sheet.title = "Rent"
    sheet.append(["Site", "EUR"])
    sheet.append(["Kiel", value])
    return saved(made)


def test_cells_of_a_workbook(tmp_path: Path) -> None:
    (changed,) = diff(tmp_path, {"documents/rent.xlsx": book(100)}, {"documents/rent.xlsx": book(110)}).documents.entries
    assert [(cell.cell, cell.before, cell.after) for cell in changed.cells] == [("Rent!B2", "100", "110")]


@pytest.mark.parametrize(
    "content, why",
    [
        (b"PK\x03\x04 not at all", "is no DOCX"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "encrypted or of an old format"),
        (tracked_docx()[:-400], "is no DOCX"),
        (book(1), "an Office file of another kind"),
    ],
    ids=["no zip", "ole", "cut", "xlsx"],
)
def test_a_hostile_document_is_a_change_that_says_why_it_is_not_read(tmp_path: Path, content: bytes, why: str) -> None:
    found = diff(tmp_path, {"documents/lease.docx": plain_docx("x")}, {"documents/lease.docx": content})
    (changed,) = found.documents.entries
    assert changed.change == "changed"
    assert why in (changed.unread or "")


BAD_TABLES = {
    "no json": (jsonl({"id": 1}) + b"{nothing\n", "database/t.jsonl:2"),
    "not utf-8": (b'{"id": "\xff\xfe"}\n', "database/t.jsonl:1"),
    "a list": (b"[1]\n", "database/t.jsonl:1"),
    "nan": (b'{"id": 1, "a": NaN}\n', "database/t.jsonl:1"),
    "infinite": (b'{"id": 1, "a": 1e999}\n', "database/t.jsonl:1"),
    "long number": (b'{"id": 1, "a": ' + b"9" * 5000 + b"}\n", "database/t.jsonl:1"),
    "deep": (b'{"id": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "database/t.jsonl:1"),
    "quite deep": (b'{"id": 1, "a": ' + b"[" * 300 + b"]" * 300 + b"}\n", "database/t.jsonl:1"),
    "twice": (jsonl({"id": 1}, {"id": 2}, {"id": 1, "a": 2}), "database/t.jsonl:3"),
    "long line": (jsonl({"id": 1, "a": "x" * world_rows.MAX_LINE_BYTES}), "database/t.jsonl"),
}


@pytest.mark.parametrize("content, where", BAD_TABLES.values(), ids=BAD_TABLES)
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_table_that_cannot_be_read_is_a_problem(tmp_path: Path, content: bytes, where: str, side: str) -> None:
    bad, good = {**STATE, "database/t.jsonl": content}, {**STATE, "database/t.jsonl": jsonl({"id": 1})}
    found = diff(tmp_path, bad, good) if side == "before" else diff(tmp_path, good, bad)
    assert problems(found) == [("rows", side, where)]
    assert not found.unchanged
    assert found.rows.counts.total == 0


def test_values_are_kept_as_they_can_be(tmp_path: Path) -> None:
    odd = {"id": "a\ud800b", "deep": json.loads("[" * 150 + "]" * 150), "long": "x" * 5000, "none": None, "\udcff": "\udcff"}
    many = {"id": 7, **{f"f{number}": number for number in range(500)}}
    found = diff(tmp_path, STATE, {**STATE, "database/t.jsonl": jsonl(odd, many)})
    few, row = sorted(found.rows.entries, key=lambda row: row.key or "")
    assert (few.key, few.cut) == ("7", ("*",))
    assert (row.key, row.cut) == ("a\\ud800b", ("deep", "long"))
    assert row.after is not None
    assert row.after["\\udcff"] == "\\udcff"
    assert len(row.after["long"]) == world_rows.MAX_VALUE_CHARS
    assert len(few.after or {}) == world_rows.MAX_FIELDS


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"default": "ann"}', b'{"default": [], "rules": [{"match": 1, "readers": []}]}', b"\xff", b"a: &a [1]\nb: *a\n",
     b"default: []\nrules: [{match: x, readers: [a], since: 2026-01-01}]\n", b"[" * 100_000],
)  # fmt: skip
def test_permissions_that_cannot_be_read_are_a_problem(tmp_path: Path, content: bytes) -> None:
    found = diff(tmp_path, STATE, {**STATE, "permissions": content})
    assert problems(found) == [("permissions", "after", "permissions")]
    assert not found.permissions.changed


def test_permissions_that_are_missing_or_double_are_a_problem(tmp_path: Path) -> None:
    without = {name: content for name, content in STATE.items() if name != "permissions"}
    assert problems(diff(tmp_path, STATE, without)) == [("permissions", "after", "permissions")]
    assert problems(diff(tmp_path, without, STATE)) == [("permissions", "before", "permissions")]
    double = {**STATE, "permissions.yaml": STATE["permissions"]}
    assert problems(diff(tmp_path, STATE, double)) == [("permissions", "after", "permissions.yaml")]


def test_links_that_lead_nowhere_are_problems_and_no_changes(tmp_path: Path) -> None:
    links = {
        "documents/gone": "/world/documents/gone",
        "documents/up": "/world/../etc/passwd",
        "documents/host": "/etc/passwd",
        "documents/folder": "/world/documents",
        "documents/lease.md": "/world/nothing",
    }
    world = {"documents/x": b"x"}
    found = diff(tmp_path, {**STATE, "documents/up": b"was here"}, STATE | {}, world=world, links=links)
    assert {where for _, _, where in problems(found)} == set(links), (
        "the one that stands there as a file too is not to be trusted"
    )
    assert {entry.path for entry in found.documents.entries} == set()


def test_what_was_skipped_does_not_look_removed(tmp_path: Path) -> None:
    after = {"permissions": STATE["permissions"], "blobs/scan.bin": STATE["blobs/scan.bin"]}
    skipped = {
        "state/documents/": "holds more entries than the bundle has left",
        "state/database/reviews.jsonl": "too large: 5 bytes, the bundle holds 4",
        "files/other": "a FIFO",
        "../logs/x": "a symbolic link",
    }
    found = diff(tmp_path, STATE, after, skipped=skipped)
    assert problems(found) == [("rows", "after", "database/reviews.jsonl"), ("documents", "after", "documents")]
    assert found.summary() | {"n_problems": 0} == WorldDiff().summary()
    more = diff(tmp_path, STATE, after, skipped={"...": "more was left out than is named here"})
    assert ("state", "after", "") in problems(more)


@pytest.mark.parametrize("side", ["before", "after"])
def test_no_state_at_all_is_a_problem_and_nothing_removed(tmp_path: Path, side: str) -> None:
    found = diff(tmp_path, *(({}, STATE) if side == "before" else (STATE, {})))
    assert problems(found) == [("state", side, "")]
    assert found.summary() | {"n_problems": 0} == WorldDiff().summary()


def test_members_of_any_kind_and_name(tmp_path: Path) -> None:
    def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        return info

    extra = [
        special("out/state/documents/fifo", tarfile.FIFOTYPE),
        special("out/state/documents/hard", tarfile.LNKTYPE, "/etc/passwd"),
        special("out/state/documents/../../up", tarfile.SYMTYPE, "/world/x"),
        special("out/state/notes", tarfile.DIRTYPE),
    ]
    after = {**STATE, "notes/x": b"", "database/readme.txt": b"", "documents/\udcff\n.txt": b"odd name\n"}
    found = diff(tmp_path, STATE, after, extra=extra)
    assert {where for _, _, where in problems(found)} == {
        "documents/fifo",
        "documents/hard",
        "documents/../../up",
        "notes/x",
        "database/readme.txt",
    }
    assert [entry.path for entry in found.documents.entries] == ["documents/\\udcff\n.txt"]


def test_size_is_bounded_and_what_is_cut_is_counted(tmp_path: Path) -> None:
    documents = {f"documents/{number:05}.txt": b"word " * 2000 + b"%d\n" % number for number in range(1500)}
    table = jsonl(*({"id": number, "text": "y" * 900, "more": "z" * 900} for number in range(3000)))
    found = diff(tmp_path, STATE, {**STATE, **documents, "database/t.jsonl": table})
    assert (found.documents.counts.added, found.rows.counts.added) == (1500, 3000)
    assert len(found.documents.entries) + found.documents.n_more == 1500
    assert len(found.rows.entries) + found.rows.n_more == 3000
    assert 0 < len(found.rows.entries) <= MAX_ENTRIES
    assert len(found.model_dump_json()) < 4 * MAX_PART_BYTES
    assert any(entry.text and entry.text.n_cut for entry in found.documents.entries)


def test_a_text_that_would_take_for_ever_is_compared_as_one_block(tmp_path: Path) -> None:
    lines = [f"{number % 100}\n" for number in range(20_000)]
    before = "".join(["head\n", *lines, "tail\n"]).encode()
    after = "".join(["head\n", *reversed(lines), "tail\n"]).encode()
    (changed,) = diff(tmp_path, {"documents/x": before}, {"documents/x": after}).documents.entries
    assert changed.text is not None
    assert len(changed.text.hunks) == 1
    assert changed.text.n_more > 0
