"""Programs built from Go modules at pinned versions. `go/<module>/go.mod` names them, and `go.sum` holds the checksums.

`go build -mod=readonly` refuses any difference. A program is built when it is needed and the cache does not have it for the same pins.
"""

import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .errors import MissingError
from .places import FOLDER, Places
from .process import run
from .progress import step

KUBERNETES = "v1.37.2"
OLDEST_KUBERNETES = "v1.30.14"
API_SERVER = "kube-apiserver"
OLDEST_API_SERVER = "kube-apiserver-oldest"
_VERSION = "k8s.io/component-base/version"
_BUILD_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Source:
    """A Go module with programs.

    Attributes:
        folder: below `go/`, with go.mod and go.sum.
        packages: program to Go package.
        expected: text with the usual time of a cold build on two cores.
    """

    folder: str
    packages: dict[str, str]
    expected: str
    ldflags: str = "-s -w"


def _kubernetes_flags(version: str) -> str:
    major, minor, _ = version.removeprefix("v").split(".")
    return f"-s -w -X {_VERSION}.gitVersion={version} -X {_VERSION}.gitMajor={major} -X {_VERSION}.gitMinor={minor}"


KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubeadm", "kubectl")
SOURCES = (
    Source(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS},
        "about 7 min",
        _kubernetes_flags(KUBERNETES),
    ),
    Source(
        "kubernetes-oldest",
        {OLDEST_API_SERVER: "k8s.io/kubernetes/cmd/kube-apiserver"},
        "about 10 min",
        _kubernetes_flags(OLDEST_KUBERNETES),
    ),
    Source("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, "about 1 min"),
    Source("coredns", {"coredns": "github.com/coredns/coredns"}, "about 3 min"),
    Source("kind", {"kind": "sigs.k8s.io/kind"}, "about 20 s"),
    Source("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}, "about 1 min"),
    Source("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, "about 1 min"),
    Source("cyclonus", {"cyclonus": "github.com/mattfenwick/cyclonus/cmd/cyclonus"}, "about 1 min"),
    Source("versitygw", {"versitygw": "github.com/versity/versitygw/cmd/versitygw"}, "about 2 min"),
    Source("kueue", {"kueue": "sigs.k8s.io/kueue/cmd/kueue"}, "about 6 min"),
    Source("kueue-oldest", {"kueue-oldest": "sigs.k8s.io/kueue/cmd/kueue"}, "about 5 min"),
    Source("scheduler-plugins", {"scheduler-plugins": "sigs.k8s.io/scheduler-plugins/cmd/scheduler"}, "about 12 min"),
    Source("karpenter", {"karpenter": "sigs.k8s.io/karpenter/kwok"}, "about 4 min"),
    Source("pause", {"pause": "muster.test/pause"}, "a few seconds"),
)
CONTROL_PROGRAMS = ("kube-scheduler", "kube-controller-manager")


class Programs:
    """The programs in one cache."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._moving = threading.Lock()

    def path(self, name: str) -> Path:
        """The path of a program after `ensure` was called for it."""
        return self._places.bin / name

    def ensure(self, names: Iterable[str]) -> None:
        """Builds the named programs that are missing or older than their pins, two modules at a time. Waits for another process that
        builds some, because it may build the same.

        Raises:
            MissingError: a program must be built, and there is no Go.
            CommandFailedError: a build failed.
        """
        chosen = set(names)
        if not (work := self._missing(chosen)):
            return
        _require_go(", ".join(name for _, names in work for name in names))
        with self._places.building(), ThreadPoolExecutor(max_workers=2) as pool:
            for done in [pool.submit(self._build, source, names) for source, names in self._missing(chosen)]:
                done.result()

    def module_folder(self, folder: str, module: str) -> Path:
        """The unpacked source of a module that `go/<folder>` requires, checked against its go.sum."""
        _require_go(f"the source of {module}")
        answer = run(["go", "mod", "download", "-json", module], 600, cwd=FOLDER / "go" / folder, env=_go_environment())
        return Path(json.loads(answer)["Dir"])

    def _missing(self, chosen: set[str]) -> list[tuple[Source, list[str]]]:
        """The modules of which programs must be built, with these programs."""
        missing = [(source, [name for name in source.packages if name in chosen and not self._current(source, name)]) for source in SOURCES]
        return [(source, names) for source, names in missing if names]

    def _current(self, source: Source, name: str) -> bool:
        stamp = self._stamp(name)
        return self.path(name).exists() and stamp.exists() and stamp.read_text() == _key(source, name)

    def _stamp(self, name: str) -> Path:
        return self._places.bin / ".pins" / name

    def _build(self, source: Source, names: list[str]) -> None:
        self._places.bin.mkdir(parents=True, exist_ok=True)
        with step(f"building {', '.join(names)} from Go modules", f"{source.expected} when nothing is cached"):
            into = Path(tempfile.mkdtemp(prefix=".build-", dir=self._places.bin))
            try:
                for name in names:  # one by one, because the name of a package may differ from that of its program
                    package = ["-ldflags", source.ldflags, "-o", str(into / name), source.packages[name]]
                    folder = FOLDER / "go" / source.folder
                    run(["nice", "go", "build", "-trimpath", *package], _BUILD_TIMEOUT, cwd=folder, env=_go_environment())
                with self._moving:
                    for name in names:
                        (into / name).replace(self.path(name))
                        self._stamp(name).parent.mkdir(exist_ok=True)
                        self._stamp(name).write_text(_key(source, name))
            finally:
                shutil.rmtree(into)


def _key(source: Source, name: str) -> str:
    digest = hashlib.sha256(f"{name} {source.packages[name]} {source.ldflags}".encode())
    for file in sorted((FOLDER / "go" / source.folder).iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _go_environment() -> dict[str, str]:
    return {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}


def _require_go(what: str) -> None:
    if shutil.which("go") is None:
        raise MissingError(
            f"Go 1.26 or newer is needed to build {what} and is not on PATH: install it, or run where Docker can pull images, "
            "or set KUBECONFIG to a cluster that exists"
        )
