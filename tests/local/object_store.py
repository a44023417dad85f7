"""A real S3 server on this machine: versitygw over a folder, built as the programs of the cluster's tests are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worlds import free_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster import harness

ACCESS, SECRET, BUCKET = "muster", "not-a-secret", "checkpoints"
DEADLINE = 60.0


@contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """The variables by which a client reaches it. Its objects of the bucket are the files below `folder`/BUCKET."""
    programs = harness.Programs(harness.Places.default())
    programs.ensure(["versitygw"])
    (folder / BUCKET).mkdir(parents=True)
    (folder.parent / "attributes").mkdir()
    port = free_port()
    listening = ["--port", f"127.0.0.1:{port}", "--quiet"]
    backend = ["posix", "--sidecar", str(folder.parent / "attributes"), str(folder)]
    server = subprocess.Popen(
        [str(programs.path("versitygw")), *listening, *backend],
        env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET},
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait(server, port)
        yield {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait()


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
