"""Headless Chromium from Debian, driven by selenium. Nothing leaves the machine."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

_GONE = (StaleElementReferenceException, ElementClickInterceptedException)
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, css: str, text: str = "", timeout_s: float = 60) -> WebElement:
        """The first visible element of `css` whose text holds `text`, once it is there."""

        def look(_: object) -> WebElement | Literal[False]:
            found = [e for e in self.driver.find_elements(By.CSS_SELECTOR, css) if e.is_displayed() and text in e.text]
            return found[0] if found else False

        return WebDriverWait(self.driver, timeout_s, ignored_exceptions=_GONE).until(look, f"no {css} with {text!r}")

    def click(self, css: str, text: str = "") -> None:
        self.find(css, text).click()

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def screenshot(self, path: Path) -> None:
        assert self.driver.save_screenshot(str(path))


@contextmanager
def chromium(profile: Path, width: int = 1280, height: int = 800, *, network: bool = False) -> Generator[Browser]:
    """profile: a new, empty directory. network: the log `performance` holds every request."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    assert not missing, f"{', '.join(missing)} missing: apt-get install -y --no-install-recommends chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"] or ""
    for flag in [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]:
        options.add_argument(flag)
    if network:
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
