"""Errors before the training: one message, the right code, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import descriptors

BASE = {
    "MUSTER_JOB": "default/digits",
    "MUSTER_JOB_UID": "uid",
    "MUSTER_JOB_CREATED": "2026-11-21T11:16:14Z",
    "MUSTER_STRATEGY": "DDP",
    "MUSTER_ROLE": "worker",
    "MUSTER_INDEX": "0",
    "MUSTER_ATTEMPT": "0",
    "MUSTER_PROCESSES": "1",
    "MUSTER_POD_NAME": "digits-worker-0",
    "MUSTER_POD_UID": "uid",
}
TRAINER = {"strategy": descriptors.document(), "task": "digits", "config": {}, "batch": {"globalSize": 64}}
ABSENT = {"name": "Other", "framework": {"name": "Other", "package": "not_there"}, "engine": "not_there.engine:Engine"}
TORCH = descriptors.document()["framework"]
NO_TASKS = {"name": "Other", "package": "email.mime"}


def run(trainer: dict[str, Any], folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "muster_trainer.process"],
        cwd=folder,
        env={**os.environ, **BASE, "MUSTER_TRAINER": json.dumps(trainer), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("trainer", "env", "code", "message"),
    [
        (TRAINER | {"task": "collectives", "strategy": descriptors.document("RPC")}, {}, 11, "RPC has no collectives"),
        (TRAINER | {"strategy": None}, {}, 11, "MUSTER_TRAINER.strategy"),
        (TRAINER | {"strategy": ABSENT}, {}, 11, "Other needs the module not_there: No module named 'not_there'"),
        (TRAINER | {"strategy": ABSENT | {"framework": TORCH, "engine": "os.path"}}, {}, 11, "not the form package.module:name"),
        (TRAINER | {"strategy": ABSENT | {"framework": TORCH, "engine": "os.path:Engine"}}, {}, 11, "os.path of this image has no Engine"),
        (TRAINER | {"strategy": ABSENT | {"framework": TORCH, "engine": None}}, {}, 11, "Other trains no tasks"),
        (TRAINER | {"task": "gpt", "strategy": ABSENT | {"framework": NO_TASKS}}, {}, 11, "Other has no task gpt"),
        (TRAINER | {"config": {"epoch": 1}}, {}, 11, "did you mean epochs?"),
        (TRAINER | {"task": "digit"}, {}, 11, "Write one of digits"),
        (TRAINER | {"task": None, "module": "nowhere.at_all"}, {}, 11, "there is no module nowhere"),
        (TRAINER, {"MUSTER_JOB_CREATED": "yesterday"}, 11, "MUSTER_JOB_CREATED"),
    ],
)
def test_an_invalid_job_ends_with_one_line(trainer: dict[str, Any], env: dict[str, str], code: int, message: str) -> None:
    ended = run(trainer, **env)
    assert ended.returncode == code
    assert message in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "Traceback" not in ended.stderr


def test_only_modules_of_the_user_are_imported_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("json", "psutil", "numpy", "torch", "sklearn", "mine"):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path\nPath('imported-{name}').touch()\nraise ImportError('from here')")
    assert run(TRAINER | {"config": {"epoch": 1}}, tmp_path).returncode == 11
    assert [path.name for path in tmp_path.glob("imported-*")] == []
    assert "from here" in run(TRAINER | {"task": None, "module": "mine"}, tmp_path).stderr
    assert (tmp_path / "imported-mine").exists()


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run(TRAINER | {"task": "digit"}, MUSTER_DEBUG="1").stderr


def test_an_error_is_reported_to_the_supervisor() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as lines:
        subprocess.run(
            [sys.executable, "-m", "muster_trainer.process"],
            env={**os.environ, **BASE, "MUSTER_TRAINER": "{", "MUSTER_EVENTS_FD": str(writer), "MUSTER_RANK": "3"},
            capture_output=True,
            pass_fds=[writer],
            timeout=60,
        )
        os.close(writer)
        (error,) = [json.loads(line) for line in lines]
    assert (error["event"], error["rank"], error["code"], error["reason"]) == ("error", 3, 11, "BadConfiguration")
    assert "MUSTER_TRAINER is not JSON" in error["message"]


def test_summaries_do_not_import_tensorflow(tmp_path) -> None:  # type: ignore[no-untyped-def]
    program = (
        "import sys; from pathlib import Path; from muster_trainer.training.summaries import Summaries;"
        f"s = Summaries(Path({str(tmp_path)!r}), attempt=0, first_step=1, notice=print); s.write(1, {{'loss': 1.0}}); s.close();"
        "print('tensorflow' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "False", ended.stderr
    assert len(list(tmp_path.glob("events.out.tfevents.*.0000"))) == 1


RUN = """
import asyncio, sys
from muster_trainer import process
class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("it has no text")
def run(events):
{body}
process._run = run
process.main()
"""


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise Speechless", 10, "the training code failed: Speechless"),
        ("raise asyncio.CancelledError", 10, "the training code failed: CancelledError"),
        ("raise GeneratorExit('now')", 10, "the training code failed: GeneratorExit: now"),
        ("sys.stdout.close(); raise ValueError('no number')", 10, "the training code failed: ValueError: no number"),
        ("sys.stderr.close(); raise ValueError('no number')", 10, None),
        ("sys.stdout.close(); events.say('done'); process._end(0)", 0, None),
        ("sys.stdout = sys.stderr = None; events.complain('done'); process._end(0)", 0, None),
    ],
)
def test_odd_code_of_the_user_changes_no_exit_code(body: str, code: int, message: str | None) -> None:
    program = RUN.format(body=f"    {body}")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.count("Traceback (most recent call last)") == (1 if message else 0), "that of the user's code"
    assert (message or "") in ended.stderr


def test_an_error_names_the_line_of_the_user_and_its_traceback_is_printed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import json\n\ndef loss(outputs, batch):\n    return json.loads(batch)\n")
    body = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    import model
    from muster_trainer.tasks.module import _function
    _function(model, "module model", "loss", 2)(None, "no JSON")
"""
    ended = subprocess.run([sys.executable, "-c", RUN.format(body=body)], capture_output=True, text=True, timeout=60)
    *printed, last = ended.stderr.splitlines()
    assert ended.returncode == 10
    assert f"JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({tmp_path / 'model.py'}, line 4)" in last
    assert "    return json.loads(batch)" in printed
    assert [line for line in printed if "decoder.py" in line]


@pytest.mark.parametrize(
    "body",
    [
        "os.close(events.descriptor); events.phase('Training')",
        "stop = StopRequest(events.descriptor); os.close(events.descriptor); signal.raise_signal(signal.SIGINT); time.sleep(60)",
    ],
)
def test_code_of_the_user_that_closes_the_pipe_of_events_is_to_blame(body: str) -> None:
    program = RUN.format(body=f"    import os, signal, time; from muster_trainer.host.stopping import StopRequest; {body}")
    reader, writer = os.pipe()
    environ = {**os.environ, "MUSTER_EVENTS_FD": str(writer)}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, pass_fds=[writer], capture_output=True, text=True, timeout=60)
    os.close(writer)
    os.close(reader)
    assert ended.returncode == 10, ended.stderr
    assert "closed a descriptor" in ended.stderr
