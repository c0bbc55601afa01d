"""How old the packages of a lock file are: by the file, by an index, or unknown, which is never fine."""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.project import Project

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import load_settings
from eval_pipeline.vault.publish_times import PublishTimes
from eval_pipeline.vault.supply_chain import Age, ages, is_lock, read_lock, with_times

NOW = datetime(2026, 3, 10, tzinfo=UTC)
UV = """
version = 1
[[package]]
name = "old"
version = "1.0"
source = { registry = "https://index.invalid/simple" }
sdist = { url = "x", hash = "sha256:a", upload-time = "2026-01-01T00:00:00Z" }
wheels = [{ url = "y", hash = "sha256:b", upload-time = "2026-01-02T00:00:00.5Z" }]
[[package]]
name = "Late_Wheel"
version = "1.0"
source = { registry = "https://index.invalid/simple" }
sdist = { url = "x", hash = "sha256:a", upload-time = "2025-01-01T00:00:00Z" }
wheels = [{ url = "y", hash = "sha256:b", upload-time = "2026-03-09T00:00:00Z" }]
[[package]]
name = "silent"
version = "2"
source = { registry = "https://index.invalid/simple" }
wheels = [{ url = "y", hash = "sha256:b" }, { url = "z", hash = "sha256:c", upload-time = "2025-03-09T00:00:00Z" }]
[[package]]
name = "from-git"
version = "3"
source = { git = "https://git.invalid/x?rev=1" }
[[package]]
name = "ours"
version = "0"
source = { editable = "." }
"""
NPM = {
    "lockfileVersion": 3,
    "packages": {
        "": {"name": "ours", "version": "1"},
        "node_modules/a": {"version": "1.0.0", "resolved": "https://index.invalid/a.tgz", "integrity": "sha512-x"},
        "node_modules/a/node_modules/@s/b": {"version": "2.0.0", "resolved": "https://index.invalid/b.tgz"},
        "node_modules/c": {"resolved": "packages/c", "link": True},
        "node_modules/d": {"version": "1.0.0", "resolved": "git+ssh://git.invalid/d.git#1"},
    },
}
REQUIREMENTS = """# made by a tool
-r other.txt
Click==8.1.7 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via x
extra[one,two]==1.0 ; python_version < "3.12" --hash=sha256:cc
loose>=2
"""


def test_a_package_is_as_old_as_its_youngest_file() -> None:
    found = {one.package.name: one for one in ages(read_lock("uv.lock", UV.encode()), NOW, 7)}
    assert {name: one.age for name, one in found.items()} == {
        "late-wheel": Age.YOUNG,
        "silent": Age.UNKNOWN,
        "from-git": Age.UNKNOWN,
        "old": Age.OK,
    }
    assert next(iter(found)) == "late-wheel"
    assert found["late-wheel"].age_days == 1.0
    assert (found["silent"].package.why, found["from-git"].package.why) == (
        "the lock has no upload time of each file",
        "it is not from an index",
    )


@pytest.mark.parametrize("days, verdict", [(6.999, Age.YOUNG), (7.0, Age.OK)])
def test_the_bound_is_exact(days: float, verdict: Age) -> None:
    (one,) = ages(
        [p for p in read_lock("uv.lock", UV.encode()) if p.name == "old"],
        datetime(2026, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC) + timedelta(days=days),
        7,
    )
    assert one.age is verdict


def test_the_other_forms_name_what_they_pin_and_know_no_times() -> None:
    npm = read_lock("web/package-lock.json", json.dumps(NPM).encode())
    assert [(p.name, p.version, p.why) for p in npm] == [
        ("a", "1.0.0", "the lock has no publish times"),
        ("@s/b", "2.0.0", "the lock has no publish times"),
        ("d", "1.0.0", "it is not from an index"),
    ]
    older = {"lockfileVersion": 1, "dependencies": {"a": {"version": "1", "dependencies": {"b": {"version": "2"}}}}}
    assert [(p.name, p.version) for p in read_lock("package-lock.json", json.dumps(older).encode())] == [("a", "1"), ("b", "2")]
    pinned = read_lock("requirements.lock", REQUIREMENTS.encode())
    assert [(p.name, p.version) for p in pinned] == [("click", "8.1.7"), ("extra", "1.0"), ("loose", None)]
    assert pinned[2].why == "it is pinned to no version"
    assert {one.age for one in ages([*npm, *pinned], NOW, 7)} == {Age.UNKNOWN}


def test_which_files_are_locks() -> None:
    assert all(
        map(is_lock, ["uv.lock", "a/package-lock.json", "requirements.txt", "requirements-dev.lock", "b/npm-shrinkwrap.json"])
    )
    assert not any(map(is_lock, ["requirements.in", "node_modules/x/package-lock.json", "poetry.lock.bak", "my-requirements.md"]))


@given(
    st.sampled_from([UV.encode(), json.dumps(NPM).encode(), REQUIREMENTS.encode()]),
    st.integers(0, 1500),
    st.binary(max_size=30),
    st.sampled_from(["uv.lock", "package-lock.json", "requirements.txt"]),
)
@settings(max_examples=150, deadline=None)
def test_whatever_stands_in_a_lock_is_read_or_refused(sample: bytes, at: int, change: bytes, name: str) -> None:
    try:
        found = read_lock(name, sample[:at] + change + sample[at + len(change) :])
    except SpecError as error:
        assert error.where == name
    else:
        ages(found, NOW, 7)


class _Index(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        told: dict[str, Any] = {
            "/pypi/click/8.1.7": {
                "urls": [{"upload_time_iso_8601": "2026-03-08T10:00:00Z"}, {"upload_time_iso_8601": "2025-01-01T00:00:00Z"}]
            },
            "/pypi/extra/1.0": {"urls": []},
            "/npm/a": {"time": {"1.0.0": "2020-01-01T00:00:00.000Z"}},
        }
        found = told.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, format: str, *args: object) -> None:
        """The tests' output stays clean."""


@pytest.fixture
def index() -> Generator[str]:
    _Index.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_index_tells_what_the_lock_does_not_and_is_asked_once(index: str, tmp_path: Path) -> None:
    packages = [*read_lock("requirements.txt", REQUIREMENTS.encode()), *read_lock("package-lock.json", json.dumps(NPM).encode())]
    indexes: Any = {"pypi": index + "/pypi/{name}/{version}", "npm": index + "/npm/{name}"}
    first, again = (PublishTimes(indexes, tmp_path / "t.json").find(packages) for _ in range(2))
    assert again == first
    found = {one.package.name: one for one in ages(with_times(packages, *again), NOW, 7)}
    assert {name: one.age for name, one in found.items()} == {
        "click": Age.YOUNG, "a": Age.OK, "extra": Age.UNKNOWN, "loose": Age.UNKNOWN, "@s/b": Age.UNKNOWN, "d": Age.UNKNOWN,
    }  # fmt: skip
    assert "has no publish time of it" in (found["extra"].package.why or "")
    assert "answers 404" in (found["@s/b"].package.why or "")
    assert _Index.asked.count("/pypi/click/8.1.7") == 1 and _Index.asked.count("/pypi/extra/1.0") == 2


def test_an_index_that_is_away_leaves_them_unknown_and_says_so(tmp_path: Path) -> None:
    packages = read_lock("requirements.txt", REQUIREMENTS.encode())
    times, unknown = PublishTimes({"pypi": "http://127.0.0.1:9/{name}"}, tmp_path / "t.json").find(packages)
    assert times == {} and set(unknown) == {"pypi/click/8.1.7", "pypi/extra/1.0"}
    assert all("is not reachable" in why for why in unknown.values())
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    "url", ["ftp://x/{name}", "https://x/", "https://x/{name}/{other}", "https://x/{name", "https://x/{name.a}"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="EVALS_PYPI_JSON_URL"):
        load_settings({"EVALS_PYPI_JSON_URL": url})


@pytest.mark.slow
def test_the_command_shows_the_commit_that_is_asked_for(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "state")
    first = project.commit({"uv.lock": UV.replace("2026-", "2020-"), "bin/agent": "#!/bin/sh\n"})
    project.commit({"uv.lock": UV, "web/requirements.txt": "=nonsense\n"})
    shown = project.evals("app", "dependencies")
    assert (shown["lock_files"], list(shown["unread"]), shown["fine"]) == (
        ["uv.lock", "web/requirements.txt"],
        ["web/requirements.txt"],
        False,
    )
    assert sum(shown["counts"].values()) == len(shown["packages"]) == 4
    before = project.evals("app", "dependencies", "--ref", first)
    assert (before["commit"], before["counts"]) == (first, {"ok": 2, "young": 0, "unknown": 2})
    refused = project.evals("app", "dependencies", "--ref", first, "--check", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (1, "dependencies")
    assert not (tmp_path / "state").exists()
