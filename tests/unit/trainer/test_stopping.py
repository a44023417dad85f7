"""Requests to stop, in a process whose code handles signals of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, threading
from muster_trainer.host.stopping import StopRequest
stop = StopRequest()
stop.training = True
noticed = threading.Event()
stop.on_request = noticed.set
async def own():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print)
{code}
stop.listen()
os.kill(os.getpid(), signal.SIGTERM)
print(noticed.wait(20), stop.requested, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("code", ["asyncio.run(own())", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.set_wakeup_fd(-1)"])
def test_a_stop_is_noticed_after_code_that_handles_signals(code: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "True True\n", ended.stderr
