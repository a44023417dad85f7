"""The program of the launcher: waits for the workers, runs mpirun, and says how it ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from muster_contract.codes import PROCESS_KILLED, SIGNAL_BASE, ExitCode, reason_of
from muster_contract.environment import NAMES
from muster_contract.errors import PeerLost
from muster_contract.events import ErrorEvent
from muster_contract.trainer_spec import TrainerSpec
from muster_mpi.agent import UNREACHABLE, code_of
from muster_mpi.commands import Identity, await_host, without_descriptors
from muster_mpi.mpirun import Output, arguments, hostfile, open_mpi, variables
from muster_mpi.names import HOSTS, WORLD, Host, read
from muster_trainer.host.events import Events
from muster_trainer.host.parent import die_with
from muster_trainer.host.stopping import StopRequest
from muster_trainer.host.user_program import program_words
from muster_trainer.host.waiting import START_SECONDS
from muster_trainer.supervisor.outcome import End, describe, meaning
from muster_trainer.supervisor.output_tail import peer_lost_pattern
from muster_trainer.supervisor.permanent_failure import START_SECONDS as PERMANENT_SECONDS

MOST_LINES, LONGEST_LINE = 400, 4096
LOST_DAEMON = 205
"""The exit code of mpirun that has lost a daemon."""
OUTPUT_SECONDS = 2.0


def launch(spec: TrainerSpec, events: Events, stop: StopRequest) -> int:
    """Runs mpirun with the user's program. Returns the code of the contract for its end, or 128 and the signal that killed a rank."""
    mpirun, program, identity = open_mpi(os.environ), program_words(spec, os.environ), Identity.from_environment(os.environ)
    hosts, own_slots = read(os.environ[HOSTS])
    await_hosts(hosts, identity, seconds=START_SECONDS)
    asked = threading.Event()
    stop.on_request = asked.set
    stop.training = True
    with tempfile.TemporaryDirectory(prefix="muster-mpi-") as folder:
        world, file = Path(folder, "world.json"), Path(folder, "hosts")
        world.write_text(os.environ[HOSTS])
        file.write_text(hostfile(hosts, own_slots=own_slots))
        one_machine = all(host.address.startswith("127.") for host in hosts)
        agent = f"{sys.executable} -P -m muster_mpi.agent"
        env = {**variables(agent, one_machine=one_machine), **without_descriptors(), WORLD: str(world)}
        size = own_slots + sum(host.slots for host in hosts)
        words = arguments(mpirun, program, hostfile=str(file), size=size, as_root=os.geteuid() == 0)
        started = time.monotonic()
        code, lines = _run(words, env, asked, ends_at_once=own_slots > 0)
        lost = [host.name for host in hosts if code_of(world, host.name)]
    starting = os.environ.get(NAMES["attempt"]) == "0" and time.monotonic() < started + PERMANENT_SECONDS
    output = Output(lines)
    if code == 0 and not (lost or output.daemon_failed):  # Open MPI 5 ends with 0 after the loss of a daemon
        return ExitCode.PREEMPTED if asked.is_set() else ExitCode.COMPLETED
    if asked.is_set():
        return ExitCode.PREEMPTED_NOT_SAVED
    error = failure(code, output, spec, lost=lost, starting=starting)
    events.emit(error)
    assert error.code is not None
    return error.code


def await_hosts(hosts: Sequence[Host], identity: Identity, *, seconds: float) -> None:
    """Waits until all workers answer. Raises PeerLost, which names the one that does not."""
    deadline = time.monotonic() + seconds
    for host in hosts:
        await_host(host, identity, deadline=deadline, seconds=seconds)


def failure(code: int, output: Output, spec: TrainerSpec, *, lost: Sequence[str], starting: bool) -> ErrorEvent:
    """Why mpirun ended with this code. The message is that of the rank which failed, not of mpirun. `lost` are the workers whose daemon
    has failed."""
    if output.missing_program is not None:
        return _error(ExitCode.BAD_CONFIGURATION, f"the program {output.missing_program!r} is not in the image of every worker; add it")
    if killed := output.killed:
        killed_rank, how = killed
        number = code - SIGNAL_BASE if SIGNAL_BASE < code < SIGNAL_BASE + 65 else signal.SIGKILL
        return ErrorEvent(code=SIGNAL_BASE + number, reason=PROCESS_KILLED, message=how, failed_rank=killed_rank)
    if lost or output.daemon_failed or code in (LOST_DAEMON, UNREACHABLE):
        where = " on " + ", ".join(lost or [output.lost_host or "a worker"])
        return _error(PeerLost.code, f"mpirun has lost its daemon{where} (exit code {code} of mpirun)")
    rank = output.failed_rank
    pattern = peer_lost_pattern(spec.strategy.framework.peer_lost)
    end = End(rank or 0, code, None, False, output.own, starting=starting, peer_lost=pattern)
    message = describe(end).partition(": ")[2]
    return ErrorEvent(code=meaning(end), reason=reason_of(meaning(end)), message=message, failed_rank=rank)


def _error(code: ExitCode, message: str) -> ErrorEvent:
    return ErrorEvent(code=int(code), reason=code.reason, message=message)


def _run(words: Sequence[str], env: dict[str, str], asked: threading.Event, *, ends_at_once: bool) -> tuple[int, list[str]]:
    """Runs mpirun to its end. Returns its exit code and its last lines.

    After a request to stop, the ranks that can save have got it from their own supervisors. So mpirun goes on until they have ended, except
    if it has ranks of its own, `ends_at_once`: they have ended then, or cannot save.
    """
    lines: deque[str] = deque(maxlen=MOST_LINES)
    print(f"muster: {shlex.join(words)}", flush=True)
    with subprocess.Popen(
        words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=partial(die_with, os.getpid())
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pairs = ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
        relays = [threading.Thread(target=_relay, args=(source, sink, lines), daemon=True) for source, sink in pairs]
        for relay in relays:
            relay.start()
        while process.poll() is None:
            if asked.wait(0.1):
                if ends_at_once:
                    process.terminate()
                process.wait()
        for relay in relays:
            relay.join(OUTPUT_SECONDS)
        code = process.returncode if process.returncode >= 0 else SIGNAL_BASE - process.returncode
        return code, list(lines)


def _relay(source: IO[bytes], sink: BinaryIO, lines: deque[str]) -> None:
    """Passes on what mpirun prints, as it comes, and keeps the lines."""
    rest = b""
    while chunk := os.read(source.fileno(), 1 << 16):
        sink.write(chunk)
        sink.flush()
        *whole, rest = (rest + chunk).split(b"\n")
        lines.extend(line[:LONGEST_LINE].decode(errors="replace") for line in whole)
        rest = rest[-LONGEST_LINE:]
    if rest:
        lines.append(rest.decode(errors="replace"))
