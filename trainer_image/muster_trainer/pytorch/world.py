"""Joining the PyTorch world that the environment names, and telling a lost peer from a failure of the training code."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from muster_trainer.contract import BadConfiguration, PeerLost, UserError
from muster_trainer.waiting import START_SECONDS, wait_for

# Dead peers are noticed at once; this bounds the wait for silent ones, and for slow ones that start or save.
TIMEOUT = timedelta(minutes=15)
TOGETHER_SECONDS = 10.0
NAME_SECONDS = 60.0
BACKENDS = {"NCCL": "nccl", "Gloo": "gloo"}

_LOST = re.compile(
    r"gloo|nccl|connection (was )?(closed|reset|refused)|connectfullmesh|timed? ?out|broken pipe|tcpstore|socket|"
    r"wait timeout|store->|recvvalue|not connected",
    re.IGNORECASE,
)


def backend_of(communication: str) -> str:
    """gloo or nccl. Raises BadConfiguration where the machine cannot do what is asked."""
    cuda = torch.cuda.is_available()
    if communication == "Auto":
        return "nccl" if cuda else "gloo"
    if communication not in BACKENDS:
        raise BadConfiguration(f"communication: {communication!r} is none of Auto, {', '.join(BACKENDS)} for PyTorch")
    if communication == "NCCL" and not cuda:
        raise BadConfiguration("communication: NCCL needs a CUDA device, and there is none; write Gloo or Auto")
    return BACKENDS[communication]


def join(backend: str) -> None:
    """Waits for all members. Raises PeerLost where they do not come or the port is taken."""
    os.environ.setdefault("USE_LIBUV", "0")  # Debian's torch is built without libuv
    address = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("RANK", "0")
    world = int(os.environ.setdefault("WORLD_SIZE", "1"))
    if address == "127.0.0.1" and "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    where = f"{address}:{os.environ.get('MASTER_PORT', '')}"
    try:
        if world == 1 and "MASTER_PORT" not in os.environ:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
        else:
            os.environ["MASTER_ADDR"] = _numeric(address)
            if os.environ["RANK"] != "0" and "MASTER_PORT" in os.environ:
                # torch tries again after half a second or so where it was refused: the first rank should be there.
                wait_for({"rank 0": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}, START_SECONDS)
            dist.init_process_group(backend, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise PeerLost(f"port {os.environ['MASTER_PORT']} of {address} is in use by another program") from error
        raise PeerLost(f"the world at {where} did not come up: {text[:500]}") from error


def _numeric(name: str) -> str:
    """An address of that name, once it has one; the name itself where it gets none in time. Torch would ask for IPv6 alone at first: in a
    cluster without it a name server then asks others, and where these cannot be reached takes seconds to say no."""
    limit = time.monotonic() + NAME_SECONDS
    while True:
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            if time.monotonic() > limit:
                return name
        time.sleep(0.1)


@contextmanager
def refused_together() -> Iterator[None]:
    """What does not fit is refused by every rank; none ends before all are there, since one that still connects would
    find the others gone, and rank 0 takes the store along. Waits 10 s at most: it may be this rank's refusal alone."""
    try:
        yield
    except (BadConfiguration, UserError):
        with suppress(RuntimeError):  # the store is gone: rank 0 has seen us all
            store = dist.distributed_c10d._get_default_store()
            refused, limit = store.add("muster/refused", 1), time.monotonic() + TOGETHER_SECONDS
            while refused < dist.get_world_size() and time.monotonic() < limit:
                time.sleep(0.05)
                refused = store.add("muster/refused", 0)
        raise


@contextmanager
def peers(rank: int) -> Iterator[None]:
    """Turns the failure of a collective into PeerLost. Torch raises plain RuntimeErrors for it: the text must tell."""
    try:
        yield
    except dist.DistError as error:
        raise PeerLost(f"rank {rank}: {_line(error)}") from error
    except RuntimeError as error:
        if type(error) is RuntimeError and _LOST.search(str(error)):
            raise PeerLost(f"rank {rank}: {_line(error)}") from error
        raise


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
