"""Reading the end of a process's output."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration
from muster_trainer.supervisor import output_tail
from muster_trainer.supervisor.launchers import RootCause
from muster_trainer.supervisor.output_tail import Reading, peer_lost_pattern
from tests.support import descriptors

HEADER = "Traceback (most recent call last):"
FRAME = ['  File "train.py", line 9, in <module>', "    loss.backward()"]


def read_tail(lines: Sequence[str], strategy: str = "DDP") -> Reading:
    return output_tail.read_tail(lines, peer_lost_pattern(descriptors.runtime(strategy).framework.peer_lost))


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        ("DDP", "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:31415"),
        ("DDP", "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Read error [10.0.0.1]:9: Connection reset by peer"),
        ("DDP", "RuntimeError: [/x/gloo/transport/tcp/device.cc:1] connect [10.0.0.1]:9: Connection refused"),
        ("DDP", "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation"),
        ("DDP", "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
        ("DDP", "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1."),
        (
            "DDP",
            "RuntimeError: [1] setting up NCCL: Connection was likely closed. Did the remote server shutdown or crash?",
        ),
        ("DDP", "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (a, 1)"),
        ("MultiWorkerMirrored", "tensorflow.python.framework.errors_impl.UnavailableError: {{function_node x}} failed to connect"),
        ("MultiWorkerMirrored", "UnavailableError: Collective ops is aborted by: failed to connect to all addresses"),
        ("MultiWorkerMirrored", "2026-11-21 E tensorflow: /job:worker/task:1 unhealthy (stopped sending heartbeats)"),
        (
            "JAX",
            "jax.errors.JaxRuntimeError: UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error [127.0.0.1]:1: Connection reset by peer",
        ),
        (
            "JAX",
            "F1123 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates",
        ),
        ("MultiWorkerMirrored", "tensorflow.python.framework.errors_impl.DeadlineExceededError: Deadline Exceeded"),
    ],
)
def test_the_errors_of_frameworks_for_a_lost_peer_are_recognised(strategy: str, line: str) -> None:
    assert read_tail([line], strategy).peer_lost
    assert read_tail([HEADER, *FRAME, line], strategy).peer_lost
    assert line[:40] in read_tail([HEADER, *FRAME, line, "", "[W] destroy_process_group() was not called"], strategy).message


@pytest.mark.parametrize("strategy", ["DDP", "MultiWorkerMirrored"])
@pytest.mark.parametrize(
    "line",
    [
        "ValueError: no such column",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
        " port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_other_failures_are_not_lost_peers(strategy: str, line: str) -> None:
    reading = read_tail([HEADER, *FRAME, line], strategy)
    assert (reading.peer_lost, reading.message) == (False, line)


@pytest.mark.parametrize("patterns", [["("], ["x" * 301], ["x"] * 51])
def test_an_invalid_pattern_is_refused(patterns: list[str]) -> None:
    with pytest.raises(BadConfiguration, match="peer_lost"):
        peer_lost_pattern(patterns)


def test_an_exception_raised_while_handling_a_lost_peer_is_a_lost_peer() -> None:
    lost = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
    chain = "During handling of the above exception, another exception occurred:"
    reading = read_tail([HEADER, *FRAME, lost, "", chain, "", HEADER, *FRAME, "KeyError: 'cleanup'"])
    assert (reading.peer_lost, reading.message) == (True, lost)


def test_a_worker_with_its_own_error_is_the_cause_under_a_launcher() -> None:
    lines = [
        *("[rank1]: " + line for line in [HEADER, *FRAME, "ValueError: mine"]),
        *("[rank0]: " + line for line in [HEADER, *FRAME, "RuntimeError: Connection closed by peer [::1]:1"]),
        HEADER,
        '  File "torchrun", line 8, in <module>',
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "train.py FAILED",
    ]
    reading = read_tail(lines)
    assert (reading.peer_lost, reading.message) == (False, "ValueError: mine")


LOG = "E1123 11:49:10.192000 4301 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 4381)"


def torchrun(rank: int, code: int, *lines: str) -> list[str]:
    """The output of a torchrun whose workers printed `lines`. The worker of that rank failed first."""
    return [
        "W1123 11:49:09.076000 4301 torch/distributed/run.py:982] Setting OMP_NUM_THREADS environment variable to 1",
        *lines,
        "W1123 11:49:10.191000 4301 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 12 closing signal SIGTERM",
        LOG,
        HEADER,
        '  File "/bin/torchrun", line 10, in <module>',
        "    sys.exit(main())",
        "             ^^^^^^",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "[1]:",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : -15 (pid: 12)  (SIGTERM)",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-23_11:49:10",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 11)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]


def marked(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["boom: the data is not there"], "boom: the data is not there", id="a plain message"),
        pytest.param([HEADER, *FRAME, "ValueError: bad value", "in two lines"], "ValueError: bad value in two lines", id="a traceback"),
        pytest.param(
            [*marked(0, HEADER, *FRAME, "KeyError: 'echo'"), *marked(1, HEADER, *FRAME, "ValueError: mine")],
            "ValueError: mine",
            id="lines that say whose they are",
        ),
        pytest.param(
            [HEADER, *FRAME, "ValueError: first", HEADER, *FRAME, "KeyError: 'second'"], "ValueError: first", id="lines that do not"
        ),
        pytest.param([], "ended with exit code 1, and the end of its output shows no error", id="nothing"),
    ],
)
def test_the_message_under_torchrun_is_the_error_of_the_first_failed_worker(lines: list[str], message: str) -> None:
    reading = read_tail(torchrun(1, 1, *lines))
    assert reading.message == message
    assert reading.root_cause == RootCause(rank=1, code=1)
    assert reading.killed_by is None


def test_the_signal_that_ended_a_worker_of_torchrun_is_read() -> None:
    reading = read_tail(torchrun(0, -9))
    assert (reading.killed_by, reading.peer_lost, reading.message) == (9, False, "")
    echo = marked(1, HEADER, *FRAME, "RuntimeError: Connection closed by peer [::1]:1")
    assert read_tail(torchrun(0, -9, *echo)).killed_by == 9
    mine = marked(1, HEADER, *FRAME, "ValueError: mine")
    assert read_tail(torchrun(0, -9, *mine)).killed_by is None


def test_a_truncated_summary_of_torchrun_is_not_the_message() -> None:
    lines = torchrun(1, 1)
    reading = read_tail(lines[lines.index("Failures:") :])
    assert reading.root_cause == RootCause(rank=1, code=1)
    assert "exit code 1" in reading.message


RECORDED = "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def test_a_traceback_in_the_summary_of_torchrun_gives_the_message() -> None:
    traceback = [f"  traceback : {HEADER}", *(f"  {line}" for line in (*FRAME, "ValueError: mine", ""))]
    lines = [part for line in torchrun(1, 1) for part in (traceback if line == RECORDED else [line])]
    assert read_tail(lines).message == "ValueError: mine"


def test_the_message_has_no_prefix_of_torchrun() -> None:
    lines = [f"[default1]:{line}" for line in [HEADER, *FRAME, "ValueError: mine"]]
    assert read_tail(torchrun(1, 1, *lines)).message == "ValueError: mine"


@pytest.mark.parametrize(
    ("end", "code"),
    [("returned non-zero exit status 1", 1), ("returned non-zero exit status 2", 2), ("died with <Signals.SIGKILL: 9>", -9)],
)
def test_the_traceback_of_accelerate_is_not_the_error_of_the_program(end: str, code: int) -> None:
    frame = '  File "/x/accelerate/commands/launch.py", line 999, in simple_launcher'
    lines = [HEADER, *FRAME, "ValueError: mine", HEADER, frame, f"subprocess.CalledProcessError: Command '['python', 'train.py']' {end}."]
    reading = read_tail(lines)
    assert (reading.message, reading.root_cause) == ("ValueError: mine", RootCause(rank=None, code=code))
    alone = read_tail(lines[-3:])
    assert (alone.message, alone.killed_by) == (("", 9) if code < 0 else (f"ended with exit code {code}, {SILENT}", None))
    own = read_tail([HEADER, *FRAME, lines[-1]])  # the program's own call of another one
    assert (own.message, own.root_cause) == (lines[-1], None)


SILENT = "and the end of its output shows no error"


def test_a_message_of_several_lines_becomes_one_line() -> None:
    reading = read_tail([HEADER, *FRAME, "RuntimeError: size mismatch", "got 3, expected 4", "at layer 2", "and more"])
    assert reading.message == "RuntimeError: size mismatch got 3, expected 4 at layer 2"


def test_the_last_line_is_the_message_if_there_is_no_traceback() -> None:
    assert read_tail(["starting", "cannot open data.csv", ""]).message == "cannot open data.csv"
    assert read_tail([]).message == ""


@given(st.lists(st.text(max_size=80) | st.sampled_from([HEADER, *FRAME, "ValueError: x", "Connection closed by peer"])))
def test_any_output_can_be_read(lines: list[str]) -> None:
    assert len(read_tail(lines).message) <= 1501


@pytest.mark.parametrize("code", ["-99999", "9" * 4000, "256", "١"])
def test_an_impossible_exit_code_in_a_summary_is_ignored(code: str) -> None:
    lines = ["Root Cause (first observed failure):", "  rank      : 0 (local_rank: 0)", f"  exitcode  : {code} (pid: 11)"]
    assert read_tail(lines).root_cause is None


def test_lines_of_other_processes_count_only_if_the_program_printed_none() -> None:
    relayed = [
        f"(Controller pid=25, ip=10.0.0.3) {HEADER}",
        '(Controller pid=25)   File "loop.py"',
        "\x1b[36m(Worker pid=7)\x1b[0m goes on",
    ]
    assert read_tail([HEADER, *FRAME, "ValueError: no such planet", *relayed]).message == "ValueError: no such planet"
    assert read_tail(relayed).message != ""


@pytest.mark.parametrize("mark", ["", "[rank0]: "])
def test_a_traceback_behind_a_progress_bar_or_a_prompt_is_read(mark: str) -> None:
    bar = "Epoch 1:  99%|#########9| 99/100 [00:09<00:01, 10.1it/s]"
    lines = [f"{bar}{mark}{HEADER}", *(mark + line for line in FRAME), f"{mark}ValueError: bad sample 17", bar]
    reading = read_tail(lines)
    assert reading.message == "ValueError: bad sample 17"
    assert reading.chain is not None
    assert (reading.chain.at_import, reading.chain.frame) == (True, "train.py, line 9")
