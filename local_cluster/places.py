"""Where the harness keeps its files.

    <cache>/bin        programs built from Go modules                          kept
    <cache>/debian-packages   of the node image                                kept
    <cache>/debian-programs   unpacked Debian packages with programs for tests kept
    <cache>/horovod    the built package of Horovod, for tests                 kept
    <cache>/engine     images and layers of the engine that the harness runs   kept
    <cache>/logs       output of long commands, for when something fails       kept
    <cache>/work       the running cluster: kubeconfig, shared folder          gone after `down`
    /run/muster-cluster   sockets and state of the engine                      gone after `down`

`<cache>` is `$MUSTER_CACHE/cluster`, or `~/.cache/muster/cluster`.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

FOLDER = Path(__file__).resolve().parent
RUN = Path("/run/muster-cluster")


@dataclass(frozen=True)
class Places:
    """The folders of one cache. A folder is created when it is first needed."""

    cache: Path

    @classmethod
    def default(cls) -> "Places":
        """The cache that the environment names."""
        base = os.environ.get("MUSTER_CACHE")
        return cls((Path(base) if base else Path.home() / ".cache" / "muster").resolve() / "cluster")

    @property
    def bin(self) -> Path:
        return self.cache / "bin"

    @property
    def debian_programs(self) -> Path:
        return self.cache / "debian-programs"

    @property
    def horovod(self) -> Path:
        return self.cache / "horovod"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def engine(self) -> Path:
        return self.cache / "engine"

    @property
    def work(self) -> Path:
        return self.cache / "work"

    @property
    def kubeconfig(self) -> Path:
        return self.work / "kubeconfig"

    @property
    def shared(self) -> Path:
        """The folder of this machine that every node has as /shared."""
        return self.work / "shared"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevents a second command on the same cache.

        Raises:
            ClusterError: another command runs.
        """
        with self._alone(
            "lock", f"another call of the harness is at work on {self.cache}: wait for it, or use another cache with MUSTER_CACHE="
        ):
            yield

    @contextmanager
    def building(self) -> Iterator[None]:
        """Waits until no other process builds programs for this cache, and keeps others from it."""
        with self._in_turn("building"):
            yield

    @contextmanager
    def using_apt(self) -> Iterator[None]:
        """Waits until no other process with this cache uses apt, which fails if another one updates its lists."""
        with self._in_turn("apt"):
            yield

    @contextmanager
    def in_use(self, by: str = "") -> Iterator[None]:
        """Marks the cluster as used by tests that break nodes on purpose. Otherwise another command could replace the broken cluster.

        Args:
            by: name of a test run whose processes share the mark. Empty for this process alone.

        Raises:
            ClusterError: tests of another run use the cluster.
        """
        with self._alone("in-use", "tests are running on the cluster, and may have broken it on purpose: wait for their end", by=by):
            yield

    @contextmanager
    def _in_turn(self, name: str) -> Iterator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / name).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _alone(self, name: str, otherwise: str, *, by: str = "") -> Iterator[None]:
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / name).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(by)
                file.flush()
            except BlockingIOError:
                file.seek(0)
                if not by or file.read() != by:
                    raise ClusterError(otherwise) from None
            if by:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
