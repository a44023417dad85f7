"""The termination message of torchrun and `accelerate launch` is that of the worker that failed first. With the launchers themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster_trainer.supervisor.outcome import End, describe, meaning

pytestmark = pytest.mark.torch

PROGRAM = """
import os, signal, sys, time

def main():
    if os.environ["RANK"] != str(int(os.environ["WORLD_SIZE"]) - 1):
        time.sleep(300)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "import":
        import muster_has_no_such_module
    raise ValueError("the data has no column\\nlabel")

if "record" in sys.argv:
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)
main()
"""
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
ACCELERATE = (
    *("accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
    "--num_cpu_threads_per_process=1",  # with a default, accelerate warns, and the warning is the last output
)
VALUE_ERROR = "ValueError: the data has no column label"
SIGKILL = "ended by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("launcher", "how", "code", "words"),
    [
        pytest.param(TORCHRUN, ["raise"], 10, f"rank 1: {VALUE_ERROR}", id="an exception", marks=pytest.mark.thorough),
        pytest.param(TORCHRUN, ["kill"], 137, f"rank 1: {SIGKILL}", id="a signal", marks=pytest.mark.thorough),
        pytest.param(
            *(TORCHRUN, ["import"], 10, "rank 1: ModuleNotFoundError: No module named 'muster_has_no_such_module'"),
            id="an import",
            marks=pytest.mark.thorough,
        ),
        pytest.param(TORCHRUN, ["raise", "record"], 10, f"rank 1: {VALUE_ERROR}", id="record", marks=pytest.mark.thorough),
        pytest.param((*TORCHRUN, "--tee=3"), ["raise"], 10, f"rank 1: {VALUE_ERROR}", id="tee", marks=pytest.mark.thorough),
        pytest.param(
            (*TORCHRUN, "--redirects=3"),
            ["raise", "record"],
            10,
            f"rank 1: {VALUE_ERROR}",
            id="output in files",
            marks=pytest.mark.thorough,
        ),
        pytest.param(ACCELERATE, ["raise"], 10, f"rank 0: {VALUE_ERROR}", id="accelerate", marks=pytest.mark.thorough),
        pytest.param(ACCELERATE, ["kill"], 137, f"rank 0: {SIGKILL}", id="accelerate and a signal", marks=pytest.mark.thorough),
    ],
)
def test_the_termination_message_of_a_launcher_are_those_of_the_worker_that_failed(
    tmp_path: Path, launcher: tuple[str, ...], how: list[str], code: int, words: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    if launcher[0] == TORCHRUN[0]:
        launcher = (*launcher, f"--log-dir={tmp_path / 'logs'}")
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "train.py", *how],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    end = End(0, done.returncode, None, False, done.stdout.splitlines())
    assert (meaning(end), describe(end)) == (code, words), done.stdout
