"""The words that `ps` shows of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster_contract.process_title import WARM_PARENT, name_fork, titled

ENVIRON = {"MUSTER_JOB": "team/digits", "MUSTER_ROLE": "worker", "MUSTER_INDEX": "1"}


def test_the_command_line_names_the_job_the_replica_and_the_rank() -> None:
    named = titled(["/bin/python3", "train.py", "-v"], ENVIRON, "rank-3")
    assert named == ("/bin/python3", "-X", "muster=digits/worker-1/rank-3", "train.py", "-v")
    assert titled(["/bin/python3", "train.py"], {}, "rank-3") == ("/bin/python3", "train.py")


FORK = """
import sys
from muster_contract.process_title import name_fork
name_fork(int(sys.argv[1]))
print(open("/proc/self/cmdline").read(), end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("rank", "shown"), [(0, "rank-0     "), (123456, "rank-123456"), (1234567, WARM_PARENT)])
def test_a_fork_writes_its_rank_over_the_placeholder(rank: int, shown: str) -> None:
    argv = titled([sys.executable, "-c", FORK, str(rank)], ENVIRON, WARM_PARENT)
    words = subprocess.run(argv, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout.split("\0")
    assert words[1:3] == ["-X", f"muster=digits/worker-1/{shown}"]
    assert words[-2] == str(rank)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_without_the_placeholder_keeps_its_command_line() -> None:
    file = Path("/proc/self/cmdline")
    before = file.read_bytes()
    name_fork(0)
    assert file.read_bytes() == before
