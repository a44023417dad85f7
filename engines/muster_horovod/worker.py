"""The program of a worker's processes: waits until all ranks are there, and then becomes the user's program.

The user's program is the rank itself, and not a child, so that its signals, its output and its end are those of any other program.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import partial
from typing import NoReturn

from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import BadConfiguration, PeerLost
from muster_contract.programs import why_not_started
from muster_contract.trainer_spec import TrainerSpec
from muster_horovod.rendezvous import LISTENS
from muster_trainer.host.events import Events
from muster_trainer.host.parent import die_with
from muster_trainer.host.ranks import meet
from muster_trainer.host.stopping import StopRequest
from muster_trainer.host.user_program import program_words


def become_rank(spec: TrainerSpec, events: Events, stop: StopRequest) -> NoReturn:
    """Replaces this process by the user's program. Raises BadConfiguration if that cannot run, and PeerLost if a rank does not come."""
    environ, replica = dict(os.environ), ReplicaEnvironment.from_environment(os.environ)
    words = program_words(spec, environ)
    if importlib.util.find_spec("horovod") is None:
        raise BadConfiguration("the package horovod is not in this image; use Muster's image for Horovod, or add it to yours")
    rank, size = int(environ["HOROVOD_RANK"]), int(environ["HOROVOD_SIZE"])
    if rank == 0:
        serve(environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    # hvd.init() has a short deadline for the other ranks and the server, and pods may start minutes apart.
    ranks = meet(replica, rank=rank, world=size, generation="horovod")
    ranks.gather("")
    ranks.leave()
    if interface := environ.get("GLOO_SOCKET_IFNAME"):
        environ.setdefault("HOROVOD_GLOO_IFACE", interface)
    if replica.processes > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        reason = why_not_started(words[0], error, path=environ.get("PATH"))
        raise BadConfiguration(f"spec.trainer.{spec.entry_point}: {words[0]} cannot be started: {reason}") from None


def serve(address: str, port: int) -> None:
    """Starts the rendezvous server, which ends with this process, and waits until it listens. Raises PeerLost if it cannot."""
    host = address if address.startswith("127.") else ""
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "muster_horovod.rendezvous", host, str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(die_with, os.getpid()),
    )
    assert server.stdout is not None
    answer = server.stdout.readline().strip()
    if answer != LISTENS:
        # Another attempt has another port, so a retry helps.
        raise PeerLost(f"port {port}, at which the ranks of Horovod meet, cannot be used: {answer or 'its server has ended'}")
