"""The exit codes and the termination message of a supervisor."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from local_cluster.ports import free_ports
from tests.support.supervisors import IGNORES_SIGTERM, SENDS_AN_EVENT, SupervisorRun
from tests.support.texts import absent


@pytest.mark.parametrize(
    ("code", "meaning", "reason"),
    [
        (0, 0, "Completed"),
        (1, 10, "UserError"),
        (10, 10, "UserError"),
        (11, 11, "BadConfiguration"),
        (20, 20, "PeerLost"),
        (30, 30, "CheckpointDamaged"),
        (31, 31, "StorageUnavailable"),
    ],
)
def test_the_exit_code_of_a_process_becomes_the_replicas(run: SupervisorRun, code: int, meaning: int, reason: str) -> None:
    assert run.start(f"{SENDS_AN_EVENT}sys.exit({code})\n").wait() == meaning
    words = run.termination_message()
    assert (words["code"], words["reason"], words["attempt"]) == (meaning, reason, 3)
    assert words["exitCode"] == (code or None)


def test_a_process_that_exits_saved_because_its_peers_were_stopped_is_preempted(run: SupervisorRun) -> None:
    assert run.start(f"{SENDS_AN_EVENT}raise SystemExit(21)").wait() == 21
    assert run.termination_message()["reason"] == "Preempted"


@pytest.mark.parametrize("code", [10, 11, 20, 21, 22, 30, 31])
def test_the_codes_of_the_contract_mean_nothing_where_a_program_sends_no_event(run: SupervisorRun, code: int) -> None:
    assert run.start(command=["sh", "-c", f"exit {code}"]).wait() == 10
    words = run.termination_message()
    assert (words["reason"], words["exitCode"]) == ("UserError", code)


RAISES = "import muster_training as muster; muster.environment(); raise muster.CheckpointDamaged('step-5: model.pt differs from its hash')"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-c", RAISES], id="a program"),
        pytest.param(
            [sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {RAISES!r}]))"], id="its child"
        ),
    ],
)
def test_an_exception_of_the_library_that_ends_a_program_gives_its_code(run: SupervisorRun, command: list[str]) -> None:
    assert run.start(command=command).wait() == 30
    words = run.termination_message()
    assert (words["reason"], words["message"]) == ("CheckpointDamaged", "rank 0: step-5: model.pt differs from its hash")


def test_a_traceback_becomes_the_message_and_its_siblings_are_ended(run: SupervisorRun) -> None:
    source = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no such column')\ntime.sleep(600)\n"
    assert run.start(source, processes=2).wait() == 10
    words = run.termination_message()
    assert (words["message"], words["rank"], words["exitCode"]) == ("rank 1: ValueError: no such column", 1, 1)


def test_a_process_killed_from_outside_is_named_with_its_signal_and_its_sibling_is_ended(run: SupervisorRun) -> None:
    source = "import os, time\nprint('pid', os.environ['RANK'], os.getpid(), flush=True)\ntime.sleep(600)\n"
    run.start(source, processes=2)
    run.printed("pid", times=2)
    pids = {line.split()[3]: int(line.split()[4]) for line in run.out.read_text().splitlines()}
    os.kill(pids["1"], signal.SIGKILL)
    assert run.wait() == 137
    words = run.termination_message()
    assert (words["reason"], words["rank"], words["signal"], words["exitCode"]) == ("ProcessKilled", 1, "SIGKILL", None)


def test_a_sibling_that_ignores_sigterm_is_killed(run: SupervisorRun) -> None:
    source = "import os\nif os.environ['RANK'] == '1':\n    raise SystemExit(5)\n" + IGNORES_SIGTERM
    assert run.start(source, processes=2).wait() == 10
    assert run.termination_message()["exitCode"] == 5


ECHO = """
open("gone", "w").close()
raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:31415")
"""

CAUSE = """
import os, time
if os.environ["RANK"] == "1":
    while not os.path.exists("gone"):
        time.sleep(0.01)
    raise ValueError("mine")
"""


def test_a_lost_peer_is_recognised_at_the_end_of_the_output(run: SupervisorRun) -> None:
    assert run.start(ECHO).wait() == 20
    assert (run.termination_message()["reason"], run.termination_message()["exitCode"]) == ("PeerLost", 1)


def test_a_sibling_that_ends_shortly_after_a_lost_peer_was_seen_is_the_cause(run: SupervisorRun) -> None:
    assert run.start(CAUSE + ECHO, processes=2).wait() == 10
    assert run.termination_message()["message"] == "rank 1: ValueError: mine"


def test_a_script_with_a_syntax_error_gives_one_message_and_no_traceback(run: SupervisorRun) -> None:
    assert run.start("def f(:\n").wait() == 11
    assert run.termination_message()["message"].startswith(f"spec.trainer.script: {run.script}:1: ")
    (line,) = run.err.read_text().splitlines()
    assert line.startswith("muster: spec.trainer.script")
    assert run.out.read_text() == ""


def test_a_command_that_is_not_there_is_bad_configuration(run: SupervisorRun) -> None:
    assert run.start(command=["no-such-program"]).wait() == 11
    assert run.termination_message()["reason"] == "BadConfiguration"


def test_a_command_that_is_no_program_is_bad_configuration(run: SupervisorRun) -> None:
    program = run.folder / "program"
    program.write_bytes(b"\x00not a program")
    program.chmod(0o755)
    assert run.start(command=[str(program)]).wait() == 11


def test_a_missing_variable_is_named_in_the_termination(run: SupervisorRun) -> None:
    assert run.start("pass", MUSTER_STRATEGY="").wait() == 11
    assert "MUSTER_STRATEGY" in run.termination_message()["message"]
    assert "Traceback" not in run.err.read_text()


def test_a_state_folder_that_cannot_be_made_is_named(run: SupervisorRun) -> None:
    (run.folder / "file").touch()
    assert run.start("pass", MUSTER_STATE_DIR=str(run.folder / "file" / "state")).wait() == 11
    assert str(run.folder / "file" / "state") in run.termination_message()["message"]


def test_a_termination_log_that_cannot_be_written_changes_nothing_else(run: SupervisorRun) -> None:
    assert run.start("pass", MUSTER_TERMINATION_LOG=str(run.folder / "no" / "log")).wait() == 0
    assert "termination message cannot be written" in run.err.read_text()


ENDS_THE_TRAINER = """
import os, signal, torch
calls = 0
def build_model(config): return torch.nn.Linear(2, 1)
def dataset(config): return [(torch.ones(2), torch.ones(1))] * 80
def loss(outputs, batch):
    global calls
    calls += 1
    if calls == {call} and os.environ["RANK"] == "{rank}":
        {code}
    return (outputs - batch[1]).pow(2).flatten()
"""


def train_module(run: SupervisorRun, source: str, *, processes: int = 1) -> SupervisorRun:
    """Starts a replica that trains this module."""
    (run.folder / "odd.py").write_text(source)
    environ = run.environment(processes=processes, entry={"module": "odd"}, grace=20)
    [port] = free_ports(1)
    return run.start("", processes=processes, MUSTER_TRAINER=environ["MUSTER_TRAINER"], MASTER_PORT=str(port), MUSTER_ATTEMPT="0")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("code", "meaning", "message"),
    [
        ("raise KeyboardInterrupt('now')", 10, "KeyboardInterrupt: now"),
        ("os.close(1), os.close(2)", 0, "completed"),
    ],
)
def test_code_of_a_module_that_harms_its_process_has_the_right_outcome(run: SupervisorRun, code: str, meaning: int, message: str) -> None:
    assert train_module(run, ENDS_THE_TRAINER.format(code=code, call=3, rank=0)).wait() == meaning, run.err.read_text()
    assert message in run.termination_message()["message"]


@pytest.mark.torch
@pytest.mark.parametrize(("call", "rank", "size"), [(1, 0, 1), (3, 1, 2)])
def test_a_module_that_ends_any_rank_with_0_has_failed(run: SupervisorRun, call: int, rank: int, size: int) -> None:
    """In the first step, and later. The other rank ends too."""
    source = ENDS_THE_TRAINER.format(code="os._exit(0)", call=call, rank=rank)
    assert train_module(run, source, processes=size).wait() == 10, run.err.read_text()
    words = run.termination_message()
    assert (words["rank"], absent(words["message"], "the training code ended the process", "remove that call")) == (rank, [])


@pytest.mark.torch
def test_a_module_that_ends_the_process_when_it_is_imported_has_failed(run: SupervisorRun) -> None:
    assert train_module(run, "import os\nos._exit(0)").wait() == 10
    assert "the training code ended the process" in run.termination_message()["message"]


def test_an_unfinished_prompt_is_no_part_of_the_error_after_it(run: SupervisorRun) -> None:
    run.start("input('name? ')")
    assert run.wait() == 10
    assert run.termination_message()["message"] == "rank 0: EOFError: EOF when reading a line"
