"""The connection over which mpirun starts its daemon in the pod of a worker: who may, and what is sent.

The worker greets with its job, attempt, name and a fresh number. The other end answers with a command, and with an HMAC over the command
and the greeting, made with the key of the job's Secret. The worker then runs the command, and sends its exit code. So nobody without the
key can start a process, and no recorded answer can be used again. MPI itself sends its data without encryption, as Open MPI always does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_contract.environment import NAMES
from muster_contract.errors import BadConfiguration, PeerLost
from muster_mpi.names import KEY, OBJECT, Host
from muster_trainer.host.ranks import Lines

GREETING_SECONDS = 10.0
LONGEST_GREETING = 4096
LONGEST_COMMAND = 1 << 20
RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class Identity:
    """The job, the attempt and the key. Both ends must have the same."""

    job: str
    attempt: int
    key: bytes

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Identity:
        """Raises BadConfiguration if the Secret is missing."""
        path = Path(environ.get(NAMES["objects"], ""), OBJECT, KEY)
        try:
            key = path.read_bytes()
        except OSError as error:
            raise BadConfiguration(
                f"the key of this job ({path}) cannot be read: {error.strerror}; the operator must own Secrets "
                "(rbac.strategyObjects of the chart)"
            ) from None
        return cls(environ.get(NAMES["job_uid"], ""), int(environ.get(NAMES["attempt"], "0")), key)

    def greeting(self, name: str) -> dict[str, Any]:
        return {"job": self.job, "attempt": self.attempt, "worker": name, "nonce": secrets.token_hex(16)}

    def expects(self, greeting: Mapping[str, Any], name: str) -> bool:
        """Whether the greeting is of the worker of this name in this attempt. A worker may still be in the attempt before."""
        return (greeting.get("job"), greeting.get("attempt"), greeting.get("worker")) == (self.job, self.attempt, name)

    def proof(self, greeting: Mapping[str, Any], command: str) -> str:
        text = json.dumps([greeting.get(name) for name in ("job", "attempt", "worker", "nonce")] + [command])
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def command_in(self, greeting: Mapping[str, Any], answer: Mapping[str, Any]) -> str | None:
        """The command of an answer with the right proof; None for any other answer."""
        command, proof = answer.get("command"), answer.get("proof")
        if not isinstance(command, str) or not isinstance(proof, str) or not proof.isascii():
            return None
        return command if hmac.compare_digest(proof, self.proof(greeting, command)) else None


def connected(host: Host, identity: Identity) -> tuple[Lines, dict[str, Any]]:
    """A connection to the worker of this attempt, and its greeting. Raises OSError or ValueError if it does not answer as such."""
    connection = socket.create_connection((host.address, host.port), timeout=GREETING_SECONDS)
    lines = Lines(connection)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        greeting = lines.receive(longest=LONGEST_GREETING, seconds=GREETING_SECONDS)
        if not identity.expects(greeting, host.name):
            raise ValueError(f"it is not {host.name} in attempt {identity.attempt} of this job")
    except BaseException:
        lines.close()
        raise
    connection.settimeout(None)
    return lines, greeting


def await_host(host: Host, identity: Identity, *, deadline: float, seconds: float) -> None:
    """Waits until the worker answers. Raises PeerLost at the deadline (monotonic), `seconds` after the start of the wait."""
    while True:
        try:
            lines, _ = connected(host, identity)
        except (OSError, ValueError, RecursionError) as error:
            if time.monotonic() > deadline:
                raise PeerLost(
                    f"waited {seconds:g} s for {host.name}, and it does not answer at {host.address}:{host.port} ({error}); look at its log"
                ) from None
        else:
            lines.close()
            return
        time.sleep(RETRY_SECONDS)


def run_remotely(host: Host, identity: Identity, command: str) -> int:
    """Runs the command in the pod of the worker, and returns its exit code. Raises OSError or ValueError if the worker is gone."""
    lines, greeting = connected(host, identity)
    lines.send(command=command, proof=identity.proof(greeting, command))
    answer = lines.receive(longest=LONGEST_GREETING)
    lines.close()
    if type(answer.get("exit")) is not int:
        raise ValueError(f"it refuses: {answer.get('refused', 'without a reason')!s:.200}")
    return int(answer["exit"])


def serve_one(lines: Lines, identity: Identity, *, name: str, run: Callable[[str, socket.socket], int | None]) -> None:
    """Greets, checks the answer, and runs its command. `run` returns None if the worker has run its command of this attempt already."""
    try:
        greeting = identity.greeting(name)
        lines.send(**greeting)
        command = identity.command_in(greeting, lines.receive(longest=LONGEST_COMMAND, seconds=GREETING_SECONDS))
        if command is None:
            return
        code = run(command, lines.connection)
        lines.send(**({"refused": "it has run its command of this attempt"} if code is None else {"exit": code}))
    except (OSError, ValueError, RecursionError):
        return
    finally:
        lines.close()


def name_of(environ: Mapping[str, str]) -> str:
    """The name of this replica, as in the list of hosts."""
    return f"{environ.get(NAMES['role'], '')}-{environ.get(NAMES['index'], '')}"


def without_descriptors(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for programs that do not inherit the descriptors of this process, and have ranks of their own."""
    return {name: value for name, value in environ.items() if not (name.startswith("MUSTER_") and name.endswith("_FD"))}
