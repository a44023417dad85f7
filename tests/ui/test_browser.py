"""The web page in a real browser: live, in light and dark, on wide and narrow screens, and with the keyboard alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import NARROW, WIDE, Browser, browsing
from tests.support.waiting import wait_until
from tests.unit.tools.report.test_recorded import leave
from tests.unit.tools.ui.test_pages import event, run_directory

CONTRAST = 4.5
"""WCAG 2.2, criterion 1.4.3."""
LUMINANCE = """
const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (colour) => {
  const [r, g, b] = parse(colour).slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (parse(colour)[3] !== 0) { return colour; }
  }
  return "rgb(255, 255, 255)";
};
const faint = [];
for (const element of document.querySelectorAll("body *")) {
  const own = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.closest("script, style, noscript") || !element.checkVisibility()) { continue; }
  const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
  if ((one + 0.05) / (other + 0.05) < arguments[0]) { faint.push(element.outerHTML.slice(0, 100)); }
}
return faint;
"""


COUNT_FETCHES = """
const fetch = window.fetch;
window.fetches = 0;
window.fetch = (...given) => { window.fetches += 1; return fetch(...given); };
"""
"""Counts what the page requests from now on. The list of the browser has a request only when it is answered."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that goes on, and a deleted job."""
    folder = tmp_path_factory.mktemp("ui")
    run_directory(folder / "runs" / "digits", steps=40)
    leave(folder / "storage" / "default" / "gone", attempt=0, termination={"code": 10, "reason": "UserError", "message": "ValueError: no"})
    leave(folder / "storage" / "default" / "gone", attempt=1, steps=range(4, 20))
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    options = ["--no-cluster", "--port", "0", "--runs", str(folder / "runs"), "--history", str(folder / "storage")]
    with subprocess.Popen([sys.executable, "-m", "muster.cli", "ui", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("Serving ").strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, address: str) -> Browser:
    """The window, at the list of jobs."""
    window.look(dark=False, width=WIDE)
    window.open(address)
    window.problems()
    return window


def picture(browser: Browser, name: str) -> None:
    """Saves the page, if the tests are to leave pictures."""
    if folder := os.environ.get("MUSTER_UI_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.shoot(Path(folder) / f"{name}.png")


PAGES = {"jobs": "", "run": "jobs/local/-/digits", "gone": "jobs/gone/default/gone"}


@pytest.mark.parametrize("width", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole_readable_and_free_of_errors(browser: Browser, address: str, page: str, dark: bool, width: int) -> None:
    browser.look(dark=dark, width=width)
    browser.open(address.partition("?")[0] + PAGES[page])
    assert browser.all("main h1")
    assert len(browser.all("[data-plot] canvas")) == (0 if page == "jobs" else 2)
    assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth"), "the page is wider than the window"
    assert browser.script(LUMINANCE, CONTRAST) == []
    background = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 300) == dark
    for each in browser.all("summary"):
        each.click()
    picture(browser, f"{page}-{'dark' if dark else 'light'}-{width}")
    assert browser.problems() == []


def test_the_address_of_the_page_loses_its_token(browser: Browser) -> None:
    assert "token" not in browser.driver.current_url
    assert browser.script("return document.cookie") == ""


def test_a_run_that_goes_on_is_followed_without_a_reload_and_what_is_open_stays_open(browser: Browser, address: str, folder: Path) -> None:
    browser.open(address.partition("?")[0] + PAGES["run"])
    browser.script("window.isFirst = true")
    browser.all("section summary")[0].click()
    replica = folder / "runs" / "digits" / "attempts" / "0" / "worker-0"
    with (replica / "events.jsonl").open("a") as events, (replica / "log.txt").open("a") as log:
        events.write(event(41))
        log.write("a line of later\n")
    wait_until(lambda: "a line of later" in browser.text("details[open] pre"), "the line is on the page", seconds=60)
    wait_until(lambda: "after 41 steps" in browser.text("main"), "the step is on the page", seconds=60)
    assert browser.script("return window.isFirst")
    assert browser.problems() == []


LEGEND = "[data-name=Loss] .u-legend"
DRAG = """
const over = document.querySelector("[data-name=Loss] .u-over");
over.scrollIntoView();
const { left, top, width, height } = over.getBoundingClientRect();
arguments[0].forEach(([type, part]) => {
  const place = { clientX: left + part * width, clientY: top + height / 2, movementX: 1 };
  over.dispatchEvent(new MouseEvent(type, { bubbles: true, ...place }));
});
"""


def first_step(browser: Browser) -> int:
    """The step at the left edge of the plot, as the legend shows it."""
    browser.script(DRAG, [["mouseenter", 0.02], ["mousemove", 0.02]])
    return int("0" + "".join(re.findall(r"^step:?\s*(\d*)", browser.text(LEGEND))))


def test_a_plot_shows_the_figures_at_the_pointer_and_keeps_its_zoom(browser: Browser, address: str, folder: Path) -> None:
    browser.open(address.partition("?")[0] + PAGES["run"])
    wait_until(lambda: browser.all(LEGEND), "the plot is drawn", seconds=60)
    browser.script(DRAG, [["mouseenter", 0.5], ["mousemove", 0.5]])
    wait_until(lambda: "0.5" in browser.text(LEGEND), "the loss at the pointer is shown", seconds=60)
    browser.script(DRAG, [["mousedown", 0.5], ["mousemove", 0.9], ["mouseup", 0.9]])
    wait_until(lambda: first_step(browser) > 10, "the plot is zoomed in", seconds=60)
    steps = len((folder / "runs" / "digits" / "attempts" / "0" / "worker-0" / "events.jsonl").read_text().splitlines())
    with (folder / "runs" / "digits" / "attempts" / "0" / "worker-0" / "events.jsonl").open("a") as events:
        events.write(event(steps + 1))
    wait_until(lambda: f"after {steps + 1} steps" in browser.text("main"), "the plot is drawn again", seconds=60)
    wait_until(lambda: first_step(browser) > 10, "the plot is still zoomed in", seconds=60)
    assert browser.problems() == []


def test_the_list_follows_what_is_typed_and_jobs_are_overlaid(browser: Browser) -> None:
    browser.script("window.isFirst = true")
    browser.all("[name=search]")[0].send_keys("gone")
    wait_until(lambda: browser.text("main tbody a") == "gone", "the list has the job", seconds=60)
    assert "search=gone" in browser.driver.current_url
    assert browser.script("return window.isFirst")
    browser.press(*["BACKSPACE"] * len("gone"))
    wait_until(lambda: len(browser.all("main tbody a")) == 2, "the list has both jobs", seconds=60)
    for box in browser.all("[name=job]"):
        browser.script("arguments[0].click()", box)
    browser.all("#overlay button")[0].click()
    wait_until(lambda: browser.all(".u-legend"), "the plot is drawn", seconds=60)
    assert {"digits", "default/gone"} <= set(browser.text(".u-legend .u-label").splitlines())
    picture(browser, "overlay")
    assert browser.problems() == []


def test_a_run_is_deleted_with_two_clicks(browser: Browser, address: str, folder: Path) -> None:
    run_directory(folder / "runs" / "old")
    browser.open(address.partition("?")[0] + "jobs/local/-/old")
    browser.all("[data-fold=delete] summary")[0].click()
    browser.all("[data-fold=delete] button")[0].click()
    wait_until(lambda: browser.text("h1") == "Jobs", "the list is open", seconds=60)
    assert not (folder / "runs" / "old").exists()
    shutil.rmtree(folder / "runs" / "old.1")  # which other tests would see


def test_the_updates_can_be_paused(browser: Browser, address: str, folder: Path) -> None:
    browser.open(address.partition("?")[0] + PAGES["run"])
    browser.all("#pause")[0].click()
    assert browser.all("#pause")[0].get_attribute("aria-pressed") == "true"
    assert browser.text("#state") == "Updates are paused."
    browser.script(COUNT_FETCHES)
    log = folder / "runs" / "digits" / "attempts" / "0" / "worker-0" / "log.txt"
    with log.open("a") as file:
        file.write("written in the pause\n")
    browser.script("document.dispatchEvent(new Event('visibilitychange'))")  # which else refreshes at once
    assert browser.script("return window.fetches") == 0
    browser.all("#pause")[0].click()
    wait_until(lambda: "written in the pause" in browser.script("return document.body.textContent"), "updates go on", seconds=60)


def test_a_server_that_is_gone_is_named(folder: Path) -> None:
    options = ["--no-cluster", "--port", "0", "--runs", str(folder / "runs")]
    with (
        browsing() as browser,
        subprocess.Popen([sys.executable, "-m", "muster.cli", "ui", *options], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        browser.open(process.stdout.readline().removeprefix("Serving ").strip())
        process.terminate()
        wait_until(lambda: "does not answer" in browser.text("#state"), "the page says that it is old", seconds=60)


def test_everything_is_reached_with_the_keyboard(browser: Browser) -> None:
    browser.press("TAB")
    assert browser.focused() == "Skip to the content"
    assert browser.script("return document.activeElement.getBoundingClientRect().left >= 0"), "what has the focus can be seen"
    browser.press("TAB", "TAB")
    assert browser.focused() == "Pause updates"
    browser.press("TAB")
    assert browser.script("return document.activeElement.name") == "search"
    names = [link.text for link in browser.all("main tbody a")]
    assert sorted(names) == ["digits", "gone"]
    browser.script("document.querySelector('main tbody a').focus()")
    outline = browser.script("const style = getComputedStyle(document.activeElement); return [style.outlineStyle, style.outlineWidth]")
    assert outline == ["solid", "3px"]
    while browser.focused() != "digits":
        browser.press("TAB")
    browser.press("ENTER")
    wait_until(lambda: "digits" in browser.text("h1"), "the page of the run opens", seconds=60)
    for _ in range(40):
        browser.press("TAB")
        if browser.focused() == "worker-0":
            break
    assert browser.script("return document.activeElement.tagName") == "SUMMARY"
    browser.press("ENTER", "TAB")
    assert browser.script("return document.activeElement.tagName") == "PRE"  # which the arrow keys then scroll


def test_landmarks_and_names_are_there_for_those_who_listen(browser: Browser, address: str) -> None:
    for path in PAGES.values():
        browser.open(address.partition("?")[0] + path)
        assert browser.script("return document.documentElement.lang") == "en"
        for landmark in ("header", "nav[aria-label]", "main"):
            assert len(browser.all(landmark)) == 1
        assert len(browser.all("h1")) == 1
        assert browser.driver.title
        assert browser.script("return Array.from(document.querySelectorAll('th')).every((each) => each.textContent.trim())")
        assert browser.script(
            "return Array.from(document.querySelectorAll('input:not([type=hidden])')).every((each) => each.labels.length)"
        )


def test_it_works_without_scripts(address: str) -> None:
    with browsing(scripts=False) as browser:
        browser.open(address)
        assert "digits" in browser.text("main a")
        assert browser.all("#pause")[0].is_displayed() is False
        browser.open(address.partition("?")[0] + PAGES["run"])
        assert "The plot needs JavaScript." in browser.text("main")
        assert browser.problems() == []
