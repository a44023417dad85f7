"""A real S3 server on this machine: versitygw over a folder, built like the programs of the cluster's tests."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import local_cluster
from muster.local.ports import reserve_ports

ACCESS, SECRET, BUCKET = "muster", "not-a-secret", "checkpoints"
SIZE = 32 << 20
DEADLINE = 120.0


@dataclass
class ObjectStore:
    """A server that runs from its creation to `stop`. `objects` is the folder of the bucket on the disk of the server. It is on a file
    system of its own that is small enough to fill. Only the server has it mounted."""

    folder: Path
    port: int
    server: subprocess.Popen[bytes]

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which a client reaches it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
        }

    @property
    def objects(self) -> Path:
        return Path(f"/proc/{self.server.pid}/root{self.folder}/objects/{BUCKET}")

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fills the disk until no byte is left."""
        filling = self.objects.parent / "filling"
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filling.unlink()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The bucket is not there."""
        aside = self.objects.with_name("aside")
        self.objects.rename(aside)
        try:
            yield
        finally:
            aside.rename(self.objects)

    @contextmanager
    def frozen_at(self, pattern: str) -> Iterator[Path]:
        """Stops the server as soon as an object matches the pattern, until the end of the block. Returns the path of the object."""
        limit = time.monotonic() + DEADLINE
        while not (path := next(self.objects.glob(pattern), None)):
            assert time.monotonic() < limit, f"no {pattern} in {DEADLINE} s"
        with self.frozen():
            yield path

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server neither answers nor refuses."""
        self.server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.server.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.server.kill()
        self.server.wait()


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server with all its files below `folder`."""
    programs = local_cluster.Programs(local_cluster.Places.default())
    programs.ensure(["versitygw"])
    folder.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size={SIZE},mode=700 none {folder} && mkdir -p {folder}/objects/{BUCKET} {folder}/attributes"
    backend = ["posix", "--sidecar", f"{folder}/attributes", f"{folder}/objects"]
    with reserve_ports(1) as ports:
        ports.start_sharing()
        [port] = ports.numbers
        command = shlex.join([str(programs.path("versitygw")), "--port", f"127.0.0.1:{port}", "--quiet", *backend])
        server = subprocess.Popen(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{mount} && exec {command}"],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
            stdout=subprocess.DEVNULL,
        )
        store = ObjectStore(folder, port, server)
        try:
            _wait(server, port)
            yield store
        finally:
            store.stop()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    limit = time.monotonic() + DEADLINE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None, "the S3 server ended"
            assert time.monotonic() < limit, "the S3 server does not answer"
            time.sleep(0.05)
