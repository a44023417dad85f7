"""Fixtures of the tests of the supervisor; and the frameworks, imported in the order that works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# Both frameworks get into this process. torch's compiler brings an LLVM of its own and must be imported first, or the process aborts.
import torch._dynamo  # noqa: F401

from tests.support.supervisors import Coordinator, SupervisorRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SupervisorRun]:
    started = SupervisorRun(tmp_path)
    yield started
    started.end()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    server = Coordinator()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
