"""Users of a cluster sign in to the web page in a real browser, with tokens of a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.test_ui import connection_options, reader_role, serving, token_of
from tests.support.api_server.cluster import Cluster, running
from tests.support.api_server.jobs import Jobs, job
from tests.support.browser import NARROW, WIDE, browsing
from tests.support.waiting import wait_until
from tests.ui.test_browser import CONTRAST, LUMINANCE, picture


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("apiserver")) as cluster:
        yield cluster


def test_a_user_signs_in_with_the_keyboard_sees_their_jobs_and_signs_out(cluster: Cluster, tmp_path: Path) -> None:
    space = cluster.namespace("browser")
    Jobs(cluster.admin, space).submit(job("digits", workers=1))
    reader = token_of(cluster, space, "reader", role=reader_role(cluster))
    with serving(*connection_options(cluster)) as (site, _), browsing() as browser:
        page = f"http://localhost:{site.port}"
        browser.open(page)
        assert browser.text("h1") == "Sign in"
        for dark in (False, True):
            for width in (WIDE, NARROW):
                browser.look(dark=dark, width=width)
                assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
                assert browser.script(LUMINANCE, CONTRAST) == []
        picture(browser, "sign-in")
        browser.look(dark=False, width=WIDE)
        browser.all("#token")[0].send_keys("wrong")
        browser.press("ENTER")
        wait_until(lambda: "does not accept this token" in browser.text("main"), "the token is refused", seconds=60)
        browser.all("#token")[0].send_keys(reader)
        browser.press("ENTER")
        wait_until(lambda: browser.text("h1") == "Jobs", "the list is open", seconds=60)
        assert f"{space}:reader" in browser.text("header")
        assert "Choose a namespace" in browser.text("main")
        browser.all("#namespace")[0].send_keys(space)
        browser.press("ENTER")
        wait_until(lambda: browser.all(f"a[href='/jobs/cluster/{space}/digits']"), "the job is listed", seconds=60)
        browser.all("main tbody a")[0].click()
        wait_until(lambda: "digits: Pending" in browser.text("h1"), "the page of the job is open", seconds=60)
        picture(browser, "cluster-job")
        browser.look(dark=False, width=WIDE)
        assert browser.script("return document.cookie") == ""
        browser.all("form[action='/sign-out'] button")[0].click()
        wait_until(lambda: browser.text("h1") == "Sign in", "the user is signed out", seconds=60)
        browser.open(f"{page}/jobs/cluster/{space}/digits")
        assert browser.text("h1") == "Sign in"
        assert [each for each in browser.problems() if "401" not in each] == []
