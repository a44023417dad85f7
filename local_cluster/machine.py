"""Properties of this machine that decide how the cluster is created."""

import os
import platform
import re
from pathlib import Path

from .errors import ClusterError

CAP_SYS_RESOURCE = 24  # capabilities(7)


def has_sys_resource() -> bool:
    """Whether this process may raise limits and protect processes from the OOM killer, as privileged containers need to."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) & (1 << CAP_SYS_RESOURCE))


def has_cgroup_v2() -> bool:
    """Whether containers get the unified hierarchy of control groups."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def architecture() -> str:
    """The processor in the notation of container images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def require_linux_root(what: str) -> None:
    """Raises ClusterError if `what` needs Linux or root, and this process does not have it."""
    instead = "start Docker (`docker version` must answer) or set KUBECONFIG to a cluster that exists"
    if platform.system() != "Linux":
        raise ClusterError(f"{what} needs Linux: {instead}")
    if os.geteuid() != 0:
        raise ClusterError(f"{what} needs root: run `sudo -E make cluster`, {instead}")


def debian_mirror(etc: Path = Path("/etc/apt")) -> str:
    """The address of the Debian mirror in this machine's apt sources, in either format.

    Raises:
        ClusterError: the sources name no mirror.
    """
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list")), *sorted((etc / "sources.list.d").glob("*.sources"))]
    for file in files:
        text = file.read_text() if file.exists() else ""
        match = re.search(r"^(?:deb|URIs:)\s+(?:\[[^]]*\]\s+)?(https?://\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
        if match:
            return match[1]
    raise ClusterError(f"a node is made of Debian packages, and {etc} names no Debian mirror: add one, or run where Docker can pull images")
