"""The signals that `muster run` gets: which stop the run, which end it at once, and which it ignores."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from muster.local import runner
from muster.local.rundir import STOP
from muster.local.runner import stop_signals
from tests.support.waiting import DEADLINE


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, STOP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def calls(*numbers: signal.Signals, until: int) -> list[str]:
    """What the handlers are asked for by these signals, once there were `until` requests."""
    requests: list[str] = []

    async def run() -> None:
        enough = asyncio.Event()

        def note(request: str) -> None:
            requests.append(request)
            if len(requests) >= until:
                enough.set()

        with stop_signals(lambda: note("stop"), lambda: note("kill")):
            for number in numbers:
                signal.raise_signal(number)
            async with asyncio.timeout(DEADLINE):
                await enough.wait()

    asyncio.run(run())
    return requests


def test_a_ctrl_c_that_a_wrapper_passes_on_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAME_REQUEST_SECONDS", 1e6)
    assert calls(signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP, until=3) == ["stop", "stop", "stop"]


def test_a_later_ctrl_c_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAME_REQUEST_SECONDS", 0.0)
    assert calls(signal.SIGINT, signal.SIGTERM, until=2) == ["stop", "kill"]


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_since_the_start_stays_ignored(ignored: signal.Signals) -> None:
    signal.signal(ignored, signal.SIG_IGN)
    other = signal.SIGTERM if ignored is signal.SIGINT else signal.SIGINT
    assert calls(ignored, other, until=1) == ["stop"]
    assert signal.getsignal(ignored) is signal.SIG_IGN
