"""Keeps what a framework allows on loopback, so that the network cannot reach it."""

from __future__ import annotations

import socket

LAUNCHER = {"PET_LOCAL_ADDR": "127.0.0.1"}
"""Makes torchrun's workers connect by loopback. By default they use the name of this machine."""
_LIBRARIES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def interfaces() -> dict[str, str]:
    """The variables that keep gloo, NCCL and tensorpipe on loopback; empty if it has no known name. Users may override them."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    return dict.fromkeys(_LIBRARIES, loopback) if loopback else {}
