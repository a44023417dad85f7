"""What keeps the processes of a PyTorch job on loopback, so that nobody else in the network can reach them."""

from __future__ import annotations

import socket
from pathlib import Path

SITE = Path(__file__).with_name("site")
"""A folder for PYTHONPATH: its `sitecustomize` keeps rendezvous stores on loopback."""
LAUNCHER = {"PET_LOCAL_ADDR": "127.0.0.1"}
"""What tells torchrun that its workers reach each other by loopback; it would take the name of this machine."""
_LIBRARIES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def interfaces() -> dict[str, str]:
    """The variables that keep gloo, NCCL and tensorpipe on loopback, where it has a name. Users may set them otherwise."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    return dict.fromkeys(_LIBRARIES, loopback) if loopback else {}
