"""Debian's chromium without a display, driven by selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

WIDE, NARROW = 1280, 390
HEIGHT = 900


class MissingBrowserError(Exception):
    """There is no chromium on this machine."""


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def look(self, *, dark: bool, width: int) -> None:
        """Sets the colours that the reader prefers, and the width of the window."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def shoot(self, file: Path) -> None:
        """Saves a picture of the whole page."""
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return window.innerWidth")
        metrics = {"width": width, "height": min(height, 6000), "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.save_screenshot(str(file))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The visible text of the elements."""
        return "\n".join(
            self.driver.execute_script("return Array.from(document.querySelectorAll(arguments[0]), e => e.innerText)", selector)
        )

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def press(self, *keys: str) -> None:
        """Presses keys in the element that has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def focused(self) -> str:
        """The text of the element that has the focus."""
        return str(self.script("return document.activeElement.innerText || document.activeElement.id || document.activeElement.tagName"))

    def problems(self) -> list[str]:
        """The reports of the console since the last call: errors of scripts, refused content, and missing files."""
        return [str(each["message"]) for each in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def browsing(*, scripts: bool = True) -> Iterator[Browser]:
    """A window of its own. Raises MissingBrowserError."""
    program, controller = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or controller is None:
        raise MissingBrowserError("chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # root cannot have one, and the pages are our own
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=Service(controller))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
