"""A real experiment's report: read as files, and looked at in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from support.places import short_dir
from support.project import Project
from support.reported import HOSTILE, N_EVENTS, run_reported, written
from ui.browser import Browser, chromium

pytestmark = pytest.mark.slow

PAGES = ["index.html", "cells/w.hostile.base.0.html", "cells/x.doc.base.0.html", "cells/w.long.base.0.transcript-2.html"]


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def project(shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, shared_state)


@pytest.fixture(scope="module")
def experiment(project: Project) -> str:
    return run_reported(project)


@pytest.fixture(scope="module")
def folder(project: Project, experiment: str) -> Path:
    said = written(project, experiment, project.root / "report")
    assert said["index"] == str(project.root / "report" / "index.html")
    assert (said["n_cells"], said["status"]) == (10, "final")
    return project.root / "report"


def page(folder: Path, name: str) -> _Page:
    return _Page(folder / name)


def test_every_link_leads_to_a_page_and_every_cell_has_one(folder: Path) -> None:
    reached: set[Path] = set()
    for path in folder.rglob("*.html"):
        found = _Page(path)
        ids = {attrs["id"] for _, attrs in found.tags if attrs.get("id")}
        for _, attrs in found.tags:
            for link in filter(None, [attrs.get("href")]):
                target, _, fragment = link.partition("#")
                assert not re.match(r"[a-z]+:|//", link), f"{path}: {link}"
                if target:
                    assert (path.parent / target).is_file(), f"{path}: {link}"
                    reached.add((path.parent / target).resolve())
                elif not link.startswith(("#m", "#p")):  # marks of the plots
                    assert fragment in ids, f"{path}: {link}"
    assert reached == {path.resolve() for path in folder.rglob("*.html")}
    assert {f"{w}.{c}.{a}.0.html" for w, c in (("w", "plain"), ("w", "hostile"), ("w", "long"), ("x", "doc"), ("x", "slow")) for a in ("base", "other")} <= {
        path.name for path in (folder / "cells").iterdir()
    }  # fmt: skip


def test_no_page_has_a_script_a_handler_or_anything_from_elsewhere(folder: Path) -> None:
    for path in folder.rglob("*.html"):
        found = _Page(path)
        tags = [tag for tag, _ in found.tags]
        assert not {"script", "img", "iframe", "object", "embed", "form", "link", "base", "image"} & set(tags), path
        assert tags.count("style") == 1
        attributes = [(name, value) for _, attrs in found.tags for name, value in attrs.items()]
        assert not [name for name, _ in attributes if name.startswith("on") or name in ("style", "src", "srcset")], path
        (policy,) = [attrs["content"] for _, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
        assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-") and "script" not in policy


def test_what_is_hostile_stands_there_as_it_was_written(folder: Path) -> None:
    found = page(folder, "cells/w.hostile.base.0.html")
    seen = HOSTILE.replace("\x07", "\\x07")
    for part in seen.split("yes"):  # what the check found is marked
        assert part in found.text
    assert found.text.count(seen) >= 2  # in the transcript
    assert "\\ud800" in found.text
    assert "<img src=x onerror=pwned>.html" in found.text
    assert "binary.bin" in found.text and "is not text" in found.text
    assert "Says yes <b>plainly</b>" in found.text


def test_evidence_is_marked(folder: Path) -> None:
    text = (folder / "cells" / "w.plain.base.0.html").read_text()
    assert re.search(r"It is <mark>yes<sup>1</sup></mark>,   of course\.", text)
    assert "<mark>" not in (folder / "cells" / "w.plain.other.0.html").read_text()


def test_a_document_is_shown_with_its_tracked_changes(folder: Path) -> None:
    text = (folder / "cells" / "x.doc.base.0.html").read_text()
    assert "The notice period is <mark>60 days<sup>1</sup></mark>." in text
    assert "<del>90</del>" in text and "<ins>60</ins>" in text and "deletion by Ada" in text


def test_missing_is_not_zero(folder: Path) -> None:
    index = page(folder, "index.html")
    row = re.search(r"Pass rate.*?base.*?baseline(.*?)other", re.sub(r"\s+", " ", index.text))
    assert row is not None and "–" in row[1] and "5 unpriced" not in row[1]
    assert "0.0000" not in row[1]
    slow = page(folder, "cells/x.slow.base.0.html").text
    assert "agent_timeout" in slow and ">2.00 s" in re.sub(r"\s+", " ", slow)
    assert re.search(r"timeout\s*0?", index.text)


def test_a_report_is_replaced_and_nothing_else_is(project: Project, experiment: str, folder: Path) -> None:
    (folder / "cells" / "stale.html").write_text("x")
    written(project, experiment, folder)
    assert not (folder / "cells" / "stale.html").exists()
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    other = project.root / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    refused = project.evals("report", experiment, "--output", str(other), check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert (other / "mine.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with short_dir() as profile, chromium(profile, network=True) as found:
        found.open("about:blank")  # the browser's own first page asks for its parts
        yield found


def look(browser: Browser, path: Path, scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.open(path.as_uri())


def asked_for(browser: Browser) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", PAGES)
def test_in_a_browser_nothing_is_asked_for_and_nothing_runs(browser: Browser, folder: Path, name: str) -> None:
    asked_for(browser)
    look(browser, folder / name)
    assert [url.partition("#")[0] for url in asked_for(browser)] == [(folder / name).as_uri()]
    assert browser.driver.get_log("browser") == []  # pyright: ignore[reportUnknownMemberType]
    assert browser.driver.execute_script("return [window.pwned, document.scripts.length]") == [None, 0]  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(browser: Browser, folder: Path, name: str, scheme: str) -> None:
    look(browser, folder / name, scheme)
    driver: Any = browser.driver
    dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(255, 255, 255)") == (scheme == "light")
    driver.execute_script((files("axe_playwright_python") / "axe.min.js").read_text())
    options = {
        "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
        "resultTypes": ["violations"],
    }
    found = driver.execute_async_script(
        "const [options, done] = arguments; axe.run(document, options).then(done, error => done({error: String(error)}))", options
    )
    assert len(found["passes"]) > 15
    assert [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found["violations"]] == []


@pytest.mark.long
def test_a_transcript_of_10_mb_opens_in_pages(browser: Browser, folder: Path) -> None:
    assert sum(path.stat().st_size for path in (folder / "cells").glob("w.long.base.0*")) > 10_000_000
    look(browser, folder / "cells" / "w.long.base.0.html")
    driver: Any = browser.driver
    n_pages = len(list((folder / "cells").glob("w.long.base.0.transcript-*.html"))) + 1
    seen, nodes = 0, 0
    for number in range(1, n_pages + 1):
        listed, all_of, start = driver.execute_script(
            "const list = document.querySelector('ol.events');"
            "return [list.children.length, document.getElementsByTagName('*').length, list.start]"
        )
        assert start == seen + 1
        seen, nodes = seen + listed, max(nodes, all_of)
        if number < n_pages:
            link = "Next page" if number == 1 else f"Page {number + 1}"
            browser.find("nav.pages a", link).click()
    assert (seen, n_pages > 10) == (N_EVENTS, True)
    assert nodes < 3_000


def test_it_fits_the_screen_and_is_used_by_keys(browser: Browser, folder: Path) -> None:
    driver: Any = browser.driver
    for width in (1280, 800, 380):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for name in PAGES:
            look(browser, folder / name)
            assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (name, width)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    look(browser, folder / "index.html")
    driver.switch_to.active_element.send_keys(Keys.TAB)
    assert driver.switch_to.active_element.text == "Skip to the content"
    driver.switch_to.active_element.send_keys(Keys.TAB)
    outline = "return getComputedStyle(document.activeElement).outlineStyle + document.activeElement.hash"
    assert driver.execute_script(outline) == "solid#leaderboard"
