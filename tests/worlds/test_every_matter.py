"""What holds for every demo matter: formats, sizes, permissions, records, the index."""

from __future__ import annotations

import datetime
import fnmatch
import io
import re
import zipfile
from pathlib import Path

import pytest
from matter_files import MAX_BYTES, WORLDS, Matter, day_of, message

MATTERS = {path.name: Matter(path.name) for path in WORLDS.iterdir()}
FILES = [(matter, path) for matter in MATTERS.values() for path in matter.files]
EMAILS = [path for _, path in FILES if path.suffix == ".eml"]

every_matter = pytest.mark.parametrize("matter", MATTERS.values(), ids=MATTERS)


def test_there_are_two_matters() -> None:
    assert set(MATTERS) == {"harbour-spa", "lock-delay"}


@every_matter
def test_it_has_a_few_dozen_files_of_five_formats(matter: Matter) -> None:
    assert 24 <= len(matter.files) <= 30
    assert {path.suffix for path in matter.files} == {".md", ".docx", ".xlsx", ".pdf", ".eml"}
    attached = [
        part.get_filename()
        for path in matter.files
        if path.suffix == ".eml"
        for part in message(path.read_bytes()).iter_attachments()
    ]
    assert attached


@pytest.mark.parametrize(("matter", "path"), FILES, ids=lambda value: value.name if isinstance(value, Path) else value.root.name)
def test_a_file_is_small_and_says_something(matter: Matter, path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    least = 50 if path.suffix == ".xlsx" else 180
    assert least <= len(matter.texts[matter._key(path)].split()) <= 1200  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("path", [path for _, path in FILES if path.suffix in (".docx", ".xlsx")], ids=lambda path: path.name)
def test_an_office_file_holds_no_clock_no_macro_and_no_picture(path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not [name for name in archive.namelist() if re.search(r"vba|media|thumbnail|externalLink", name)]
        assert b"python-docx" not in archive.read("docProps/core.xml")


@pytest.mark.parametrize("path", EMAILS, ids=lambda path: path.name)
def test_an_email_is_a_message_of_its_day(path: Path) -> None:
    found = message(path.read_bytes())
    sent = found["Date"].datetime
    assert str(found["Date"]).startswith(sent.strftime("%a"))
    assert sent.tzinfo is not None
    assert path.stem.endswith(sent.strftime("%Y-%m-%d"))
    assert all(address.domain.endswith(".example") for header in ("From", "To", "Cc") for address in found[header].addresses)


@every_matter
def test_permissions_and_records_name_users_and_files_that_exist(matter: Matter) -> None:
    users = {row["id"] for row in matter.table("users")}
    (row,) = matter.table("matters")
    permissions = matter.permissions()
    named = {*permissions["default"], *(user for rule in permissions["rules"] for user in rule["readers"])}
    assert named | {row["user"], row["responsible"]} <= users
    paths = [path.relative_to(matter.root).as_posix() for path in matter.files]
    for rule in permissions["rules"]:
        assert len(fnmatch.filter(paths, rule["match"])) == 1, rule
    for name in ("playbook_rules", "past_chats", "tabular_reviews"):
        assert {entry["matter"] for entry in matter.table(name)} == {row["id"]}
    assert {entry["user"] for entry in matter.table("past_chats")} <= users
    assert {entry["document"] for entry in matter.table("tabular_reviews")} <= set(paths)


@every_matter
def test_the_privileged_document_is_closed_to_the_user_of_the_matter(matter: Matter) -> None:
    (row,) = matter.table("matters")
    (privileged,) = [path for path in matter.documents if "privileged" in path.name]
    rules = {rule["match"]: rule["readers"] for rule in matter.permissions()["rules"]}
    assert row["user"] not in rules[f"documents/{privileged.name}"]
    assert row["user"] in matter.permissions()["default"]


@every_matter
def test_past_answers_and_reviews_agree_with_the_documents(matter: Matter) -> None:
    for row in matter.table("past_chats"):
        for day in re.findall(r"\d{1,2} [A-Z][a-z]+ \d{4}", row["answer"]):
            (key,) = re.findall(r"document (\d\d)", row["answer"])
            assert day in matter.texts[key], row["id"]
    for row in matter.table("tabular_reviews"):
        value = row["value"]
        if value is not None and value[0].isdigit():
            value = day_of(datetime.date.fromisoformat(value))
        text = matter.texts[matter._key(matter.root / row["document"])]  # pyright: ignore[reportPrivateUsage]
        assert value is None or value in text, row["id"]


@every_matter
def test_the_index_names_every_document_with_its_date(matter: Matter) -> None:
    rows = re.findall(r"^\| (\d\d) \|.*?\| (\d+ \w+ \d{4}) \|", matter.texts["00"], re.MULTILINE)
    paths = {path.name[:2]: path for path in matter.documents}
    assert [number for number, _ in rows] == sorted(paths)[1:]
    for number, day in rows:
        if paths[number].suffix == ".eml":
            assert day == day_of(message(paths[number].read_bytes())["Date"].datetime), number
        else:
            assert day in matter.texts[number], number


@every_matter
def test_the_index_names_every_pdf_with_its_date(matter: Matter) -> None:
    listed = re.findall(r"\| ([\w-]+\.pdf) \|.*\| (\d+ \w+ \d{4}) \|", matter.texts["00"])
    assert {name for name, _ in listed} == {path.name for path in (matter.root / "blobs").iterdir()}
    for name, day in listed:
        assert day in matter.texts[name]
