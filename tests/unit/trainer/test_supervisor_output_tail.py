"""What the end of a process's output tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_trainer.supervisor.output_tail import RootCause, read_tail

HEADER = "Traceback (most recent call last):"
FRAME = ['  File "train.py", line 9, in <module>', "    loss.backward()"]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:31415",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Read error [10.0.0.1]:9: Connection reset by peer",
        "RuntimeError: [/x/gloo/transport/tcp/device.cc:1] connect [10.0.0.1]:9: Connection refused",
        "RuntimeError: [/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "RuntimeError: [1] is setting up NCCL communicator: Connection was likely closed. Did the remote server shutdown or crash?",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (a, 1)",
        "tensorflow.python.framework.errors_impl.UnavailableError: {{function_node x}} failed to connect",
        "UnavailableError: Collective ops is aborted by: failed to connect to all addresses",
        "2026-11-21 E tensorflow: /job:worker/task:1 unhealthy (stopped sending heartbeats)",
        "tensorflow.python.framework.errors_impl.DeadlineExceededError: Deadline Exceeded",
    ],
)
def test_frameworks_ways_to_say_that_a_peer_was_lost_are_known(line: str) -> None:
    assert read_tail([line]).peer_lost
    assert read_tail([HEADER, *FRAME, line]).peer_lost
    assert line[:40] in read_tail([HEADER, *FRAME, line, "", "[W] destroy_process_group() was not called"]).message


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
def test_other_failures_are_not_taken_for_a_lost_peer(line: str) -> None:
    reading = read_tail([HEADER, *FRAME, line])
    assert (reading.peer_lost, reading.message) == (False, line)


def test_an_exception_raised_while_handling_a_lost_peer_is_a_lost_peer() -> None:
    lost = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
    chain = "During handling of the above exception, another exception occurred:"
    reading = read_tail([HEADER, *FRAME, lost, "", chain, "", HEADER, *FRAME, "KeyError: 'cleanup'"])
    assert (reading.peer_lost, reading.message) == (True, lost)


def test_of_two_workers_under_one_launcher_the_one_with_an_error_of_its_own_is_the_cause() -> None:
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
    """The output of a torchrun whose workers printed `lines`, of which the one of that rank failed first."""
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
        pytest.param([], "ended with exit code 1 and printed no error", id="nothing"),
    ],
)
def test_under_torchrun_the_message_is_the_error_of_the_worker_that_failed_first(lines: list[str], message: str) -> None:
    reading = read_tail(torchrun(1, 1, *lines))
    assert reading.message == message
    assert reading.root_cause == RootCause(rank=1, code=1)
    assert reading.killed_by is None


def test_the_signal_that_a_worker_of_torchrun_died_of_is_found() -> None:
    reading = read_tail(torchrun(0, -9))
    assert (reading.killed_by, reading.peer_lost, reading.message) == (9, False, "ended by signal 9")
    echo = marked(1, HEADER, *FRAME, "RuntimeError: Connection closed by peer [::1]:1")
    assert read_tail(torchrun(0, -9, *echo)).killed_by == 9
    mine = marked(1, HEADER, *FRAME, "ValueError: mine")
    assert read_tail(torchrun(0, -9, *mine)).killed_by is None


def test_a_message_of_several_lines_is_kept_as_one() -> None:
    reading = read_tail([HEADER, *FRAME, "RuntimeError: size mismatch", "got 3, expected 4", "at layer 2", "and more"])
    assert reading.message == "RuntimeError: size mismatch got 3, expected 4 at layer 2"


def test_without_a_traceback_the_last_line_is_the_message() -> None:
    assert read_tail(["starting", "cannot open data.csv", ""]).message == "cannot open data.csv"
    assert read_tail([]).message == ""


@given(st.lists(st.text(max_size=80) | st.sampled_from([HEADER, *FRAME, "ValueError: x", "Connection closed by peer"])))
def test_any_output_can_be_read(lines: list[str]) -> None:
    assert len(read_tail(lines).message) <= 1501


@pytest.mark.parametrize("code", ["-99999", "9" * 4000, "256", "١"])
def test_an_exit_code_that_no_process_can_have_is_not_taken_from_a_summary(code: str) -> None:
    lines = ["Root Cause (first observed failure):", "  rank      : 0 (local_rank: 0)", f"  exitcode  : {code} (pid: 11)"]
    assert read_tail(lines).root_cause is None
