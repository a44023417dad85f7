"""Failures that a retry cannot repair, and failures of the application."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.codes import ExitCode
from muster_trainer.supervisor.outcome import End, describe, meaning
from muster_trainer.supervisor.output_tail import NEVER, read_tail
from muster_trainer.supervisor.permanent_failure import permanent_failure
from tests.support.texts import absent

ARGPARSE = (
    "import argparse\nparser = argparse.ArgumentParser(prog='train.py')\nparser.add_argument('--lr', type=float)\nparser.parse_args()\n"
)
CLICK = "import click\n@click.command()\n@click.option('--lr')\ndef main(lr): ...\nmain()\n"
LATE = "def main():\n    import missing_one\nmain()\n"
BAR = "import sys\nsys.stderr.write('\\rEpoch 1:  99%|#########9| 99/100 [00:09<00:01, 10.1it/s]')\n"
HANDLER = "try:\n    open('gone')\nexcept OSError:\n    report_it()\n"
CAUGHT = "try:\n    import missing_one\nexcept ImportError:\n    raise SystemExit('no missing_one, so nothing to do')\n"


def end_of(*command: str, folder: Path, starting: bool = True) -> End:
    """The end of a real process."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return End(0, done.returncode, None, requested=False, tail=(done.stdout + done.stderr).splitlines(), starting=starting)


@pytest.mark.parametrize(
    ("command", "source", "named"),
    [
        pytest.param((sys.executable, "train.py"), "import missing_one.part\n", "'missing_one'", id="a module"),
        pytest.param((sys.executable, "train.py"), BAR + "import missing_one\n", "'missing_one'", id="a module, behind a progress bar"),
        pytest.param((sys.executable, "train.py"), "input('name? ')\n", "waits for input", id="a prompt"),
        pytest.param((sys.executable, "train.py"), "def f():\n    return x\nf()\n", "train.py, line 2", id="an unknown name"),
        pytest.param((sys.executable, "train.py"), "import broken\n", "broken.py", id="a module that does not parse"),
        pytest.param((sys.executable, "train.py"), "import json\njson.load_s\n", "load_s", id="an unknown name of a module"),
        pytest.param((sys.executable, "train.py"), "import own\n", "'missing_one'", id="a module that another one imports"),
        pytest.param((sys.executable, "nowhere.py"), "", "nowhere.py", id="a program file"),
        pytest.param((sys.executable, "-m", "missing_one"), "", "'missing_one'", id="a module as program"),
        pytest.param((sys.executable, "-m", "missing_one.part"), "", "'missing_one.part'", id="a module of a package as program"),
        pytest.param(("sh", "-c", "no-such-program --lr 1"), "", "'no-such-program'", id="a command of sh"),
        pytest.param(("bash", "-c", "no-such-program"), "", "'no-such-program'", id="a command of bash"),
        pytest.param(("bash", "-c", "./train.py"), "", "'./train.py'", id="a file that is not executable"),
        pytest.param(("bash", "-c", "./nowhere.sh"), "", "'./nowhere.sh'", id="a file of bash"),
        pytest.param(("bash", "windows.sh"), "", "with LF", id="a script with the lines of Windows"),
        pytest.param(("./env.sh",), "", "with LF", id="a program with the lines of Windows"),
        pytest.param(("sh", "nowhere.sh"), "", "nowhere.sh", id="a script of sh"),
        pytest.param(("env", "no-such-program"), "", "'no-such-program'", id="a command of env"),
        pytest.param((sys.executable, "train.py", "--epochs", "1"), ARGPARSE, "unrecognized arguments: --epochs 1", id="argparse"),
        pytest.param((sys.executable, "train.py", "--lr", "x"), ARGPARSE, "argument --lr: invalid float value: 'x'", id="a value"),
        pytest.param((sys.executable, "train.py", "--epochs", "1"), CLICK, "--epochs", id="click"),
    ],
)
def test_a_missing_program_or_wrong_argument_is_named_and_not_retried(
    tmp_path: Path, command: tuple[str, ...], source: str, named: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "own.py").write_text("import missing_one\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "windows.sh").write_bytes(b"echo one\r\n\r\n")
    (tmp_path / "env.sh").write_bytes(b"#!/usr/bin/env bash\r\necho one\r\n")
    (tmp_path / "env.sh").chmod(0o755)
    end = end_of(*command, folder=tmp_path)
    assert meaning(end) == ExitCode.BAD_CONFIGURATION, end.tail
    assert named in describe(end)
    assert "\n" not in describe(end)


@pytest.mark.parametrize(
    ("command", "source"),
    [
        pytest.param((sys.executable, "train.py"), LATE, id="a module that a function imports"),
        pytest.param((sys.executable, "train.py"), CAUGHT, id="a module that the program can do without"),
        pytest.param((sys.executable, "train.py"), "raise ModuleNotFoundError('No module named here')", id="an error of that name"),
        pytest.param((sys.executable, "train.py"), "open('data.csv')", id="a file that the program opens"),
        pytest.param((sys.executable, "train.py"), HANDLER, id="an unknown name in the handler of another error"),
        pytest.param((sys.executable, "train.py"), "raise ImportError('libcuda.so.1: cannot open')", id="a library of the node"),
        pytest.param((sys.executable, "train.py"), "raise SystemExit(2)", id="exit code 2"),
        pytest.param((sys.executable, "train.py"), "print('usage: x'); raise SystemExit('train.py: error: disk')", id="another code"),
        pytest.param(("sh", "-c", "exit 127"), "", id="exit code 127"),
        pytest.param(("sh", "-c", "no-such-program; exit 3"), "", id="a command whose failure did not end the program"),
    ],
)
def test_other_failures_are_failures_of_the_application(tmp_path: Path, command: tuple[str, ...], source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert meaning(end_of(*command, folder=tmp_path)) == ExitCode.USER_ERROR


def test_a_process_that_has_started_may_fail_for_any_reason(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import missing_one\n")
    end = end_of(sys.executable, "train.py", folder=tmp_path, starting=False)
    assert meaning(end) == ExitCode.USER_ERROR
    assert describe(end) == "rank 0: ModuleNotFoundError: No module named 'missing_one'"


def test_the_exit_code_of_a_worker_under_torchrun_counts() -> None:
    """The output of torchrun 2.15 for a program that refuses an argument, with the frames of its traceback left out."""
    lines = [
        "usage: train.py [-h] [--lr LR]",
        "train.py: error: unrecognized arguments: --bad 1",
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 2 (pid: 4440) ",
        "=" * 60,
    ]
    end = End(0, 1, None, requested=False, tail=lines, starting=True)
    assert meaning(end) == ExitCode.BAD_CONFIGURATION
    assert absent(describe(end), "rank 1", "train.py", "unrecognized arguments: --bad 1") == []


LINES = st.lists(st.text(max_size=60) | st.sampled_from(["usage: x", "x: error: y", "sh: 1: a: not found", "python: No module named a"]))


@given(LINES, st.integers(-64, 255))
def test_any_output_can_be_read_for_permanent_failures(lines: Sequence[str], code: int) -> None:
    sentence = permanent_failure(read_tail(lines, NEVER), code)
    assert sentence is None or sentence
