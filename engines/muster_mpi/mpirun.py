"""mpirun of Open MPI 4 and 5: its arguments, its variables, and what it prints. The functions are pure, except `open_mpi`.

What the two versions call differently: the agent (`plm_rsh_agent` of Open MPI, `plm_ssh_agent` of PRRTE), the daemon (`orted`, `prted`),
and the program in messages (`mpirun`, `prterun`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from muster_contract.codes import signal_name
from muster_contract.errors import BadConfiguration
from muster_mpi.names import Host

_RULE = re.compile(r"-{60,}\s*$")
_LOG = re.compile(r"\[[^\]\s]+:\d+\] (?!\*\*\*)")
"""A line of mpirun's own log. Lines of an MPI error have three stars."""
_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
_CODE = re.compile(r"Process name: \[\S*,(\d+)\]\s+Exit code:\s+(\d+)")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+) .*?errorcode (-?\d+)")
_LOST = re.compile(r"has lost communication with a remote daemon.*?Remote daemon: \S+ on node (\S+)")
_NO_PROGRAM = re.compile(r"(?:unable to find the specified|could not (?:find|access|execute) the) executable.*?Executable: (\S+)")
_DAEMON_FAILED = re.compile(
    r"(?:ORTE|PRTE) (?:was unable to reliably start|daemon has unexpectedly failed)|unable to start one or more daemons"
)


def open_mpi(environ: Mapping[str, str]) -> str:
    """The path of mpirun. Raises BadConfiguration if the image has none, or that of another MPI."""
    path = shutil.which("mpirun", path=environ.get("PATH"))
    if path is None:
        raise BadConfiguration(
            "mpirun is not found in this image; use Muster's trainer image for MPI, or install Open MPI 4.1 or 5 in every image of the job"
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    if "Open MPI" not in version:
        first = (version.strip().splitlines() or ["nothing"])[0]
        raise BadConfiguration(f"{path} is not of Open MPI ({first:.80}); install Open MPI 4.1 or 5, and put it first on PATH")
    return path


def arguments(mpirun: str, program: Sequence[str], *, hostfile: str, size: int, as_root: bool) -> list[str]:
    """The command line. Ranks fill the slots of one host after another, so that their order is that of the replicas."""
    root = ["--allow-run-as-root"] if as_root else []
    return [
        mpirun,
        *root,
        "--leave-session-attached",
        "--hostfile",
        hostfile,
        "-np",
        str(size),
        "--map-by",
        "slot",
        "--bind-to",
        "none",
        *program,
    ]


def hostfile(hosts: Sequence[Host], *, own_slots: int) -> str:
    own = [f"localhost slots={own_slots}"] if own_slots else []
    return "".join(f"{line}\n" for line in [*own, *(f"{host.name} slots={host.slots}" for host in hosts)])


def variables(agent: str, *, one_machine: bool) -> dict[str, str]:
    """The variables of mpirun. Users may override those that do not name the agent.

    If all hosts are this machine, collectives that look for ranks on the same machine by its name are off, because Open MPI takes the
    hosts for several.
    """
    alone = {"OMPI_MCA_coll": "^han,sm", "OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"} if one_machine else {}
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        **alone,
    }


@dataclass(frozen=True)
class Output:
    """The last lines that mpirun and the ranks printed, oldest first."""

    lines: Sequence[str]

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], str]:
        """The lines of the ranks, and the text of mpirun's messages, which stand between two rules."""
        own: list[str] = []
        message: list[str] = []
        inside = False
        for line in self.lines:
            if _RULE.match(line):
                inside = not inside
            elif inside:
                message.append(line.strip())
            elif not _LOG.match(line):
                own.append(line)
        return tuple(own), " ".join(message)

    @property
    def own(self) -> tuple[str, ...]:
        return self._parts[0]

    @property
    def killed(self) -> tuple[int, str] | None:
        """The rank that a signal ended first, and a sentence about it without the rank."""
        match = _SIGNAL.search(self._parts[1])
        return (int(match[1]), f"ended by signal {match[3]} ({signal_name(int(match[3]))}) on {match[2]}") if match else None

    @property
    def failed_rank(self) -> int | None:
        """The rank that ended first with a code other than 0."""
        match = _CODE.search(self._parts[1]) or _ABORT.search(self._parts[1])
        return int(match[1]) if match else None

    @property
    def lost_host(self) -> str | None:
        match = _LOST.search(self._parts[1])
        return match[1] if match else None

    @property
    def missing_program(self) -> str | None:
        match = _NO_PROGRAM.search(self._parts[1])
        return match[1] if match else None

    @property
    def daemon_failed(self) -> bool:
        """Whether mpirun could not start a daemon, or lost one."""
        return self.lost_host is not None or _DAEMON_FAILED.search(self._parts[1]) is not None
