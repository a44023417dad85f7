"""Joins the PyTorch world that the environment names, and distinguishes a lost peer from a failure of the training code."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_contract.errors import BadConfiguration, ConnectionLost, PeerLost, UserError
from muster_trainer.host.waiting import BETWEEN_SECONDS, START_SECONDS, numeric, wait_for
from muster_trainer.pytorch.compat import abort_nccl

# A peer that ends is noticed at once. This limits the wait for a peer that does not answer, or is slow to start or save.
TIMEOUT = timedelta(minutes=15)
CONNECT_TRY = timedelta(seconds=1)
FIRST_TURN = 0.002
TOGETHER_SECONDS = 10.0
BACKENDS = {"NCCL": "nccl", "Gloo": "gloo"}

_PEER_LOST = re.compile(
    r"gloo|nccl|connection (was )?(closed|reset|refused)|connectfullmesh|timed? ?out|broken pipe|tcpstore|socket|"
    r"wait timeout|store->|recvvalue|not connected",
    re.IGNORECASE,
)


_SAME_GPU = re.compile(r"Duplicate GPU|same GPU", re.IGNORECASE)

is_broken = threading.Event()
_breaking = threading.Lock()


def backend_of(communication: str) -> str:
    """gloo or nccl. Raises BadConfiguration if the machine does not have what `communication` names."""
    cuda = torch.cuda.is_available()
    if communication == "Auto":
        return "nccl" if cuda else "gloo"
    if communication not in BACKENDS:
        raise BadConfiguration(f"communication: {communication!r} is none of Auto, {', '.join(BACKENDS)} for PyTorch")
    if communication == "NCCL" and not cuda:
        raise BadConfiguration("communication: NCCL needs a CUDA device, and there is none; write Gloo or Auto")
    return BACKENDS[communication]


def join(backend: str, *, meanwhile: Callable[[], None] | None = None) -> dist.Store:
    """Joins the world, and waits for all of its ranks. Returns the store that they share. Raises PeerLost if one does not join in
    time, or the port is in use. Calls `meanwhile` again and again during the wait. It may raise to end the wait, because the waits of
    PyTorch cannot be ended."""
    os.environ.setdefault("USE_LIBUV", "0")  # Debian's torch is built without libuv
    is_broken.clear()
    address = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("RANK", "0")
    world = int(os.environ.setdefault("WORLD_SIZE", "1"))
    if address == "127.0.0.1" and "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    where = f"{address}:{os.environ.get('MASTER_PORT', '')}"
    try:
        if world == 1 and "MASTER_PORT" not in os.environ:
            store: dist.Store = dist.HashStore()
            rank = 0
        else:
            os.environ["MASTER_ADDR"] = numeric(address, meanwhile=meanwhile)
            if os.environ["RANK"] != "0" and "MASTER_PORT" in os.environ:
                # PyTorch waits half a second or more after a refused connection, so the trainer polls the port first.
                wait_for({"rank 0": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}, START_SECONDS, meanwhile=meanwhile)
            rank = int(os.environ["RANK"])
            store = _store(rank, world, meanwhile)
        store.set_timeout(TIMEOUT)
        _meet(store, world, meanwhile)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        return store
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise PeerLost(f"port {os.environ['MASTER_PORT']} of {address} is in use by another program") from error
        raise ConnectionLost(f"the world at {where} did not come up: {text[:500]}") from error


def _store(rank: int, world: int, meanwhile: Callable[[], None] | None) -> dist.Store:
    """The store that rank 0 hosts. A process that survives connects in short tries, because rank 0 may be lost meanwhile. It shares no
    server of an earlier world. Otherwise a server may be shared, because RPC connects to it by itself."""
    if "MASTER_PORT" not in os.environ:
        raise ValueError("MASTER_PORT is not set")
    # TCPStore does not wait for all ranks, because `_meet` and the process group do
    options: dict[str, Any] = {"wait_for_workers": False, "use_libuv": os.environ["USE_LIBUV"] == "1", "multi_tenant": meanwhile is None}
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 or meanwhile is None:
        return dist.TCPStore(host, port, world, is_master=rank == 0, timeout=TIMEOUT, **options)
    limit = time.monotonic() + START_SECONDS
    while True:
        try:
            return dist.TCPStore(host, port, world, is_master=False, timeout=CONNECT_TRY, **options)
        except RuntimeError:
            meanwhile()
            if time.monotonic() > limit:
                raise


def _meet(store: dist.Store, world: int, meanwhile: Callable[[], None] | None) -> None:
    """Counts this rank. A process that survives waits here until all ranks are there."""
    here = store.add("muster/here", 1)
    if meanwhile is None:
        return
    meanwhile()  # also if all are there: the waits of the process group cannot be ended before they begin
    limit, turn = time.monotonic() + START_SECONDS, FIRST_TURN
    while here < world:
        meanwhile()
        if time.monotonic() > limit:
            raise PeerLost(f"waited {START_SECONDS:g} s, and {here} of {world} ranks are there")
        time.sleep(turn)
        turn = min(2 * turn, BETWEEN_SECONDS)
        here = store.add("muster/here", 0)


class World:
    """Messages of text between the ranks of the world that this process has joined."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def broadcast(self, text: str) -> str:
        """The text of rank 0, on every rank."""
        message = [text]
        with detect_peer_loss():
            dist.broadcast_object_list(message, src=0, device=self._device)
        return message[0]

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks in their order, on every rank."""
        texts = [""] * self.size
        with detect_peer_loss():
            dist.all_gather_object(texts, text)
        return texts


@contextmanager
def refuse_together(store: dist.Store) -> Iterator[None]:
    """Delays a refusal until all ranks refuse, and for 10 s at most, because this rank may be the only one.

    A rank that ended earlier would look like a lost peer to one that still connects, and rank 0 hosts the store.
    """
    try:
        yield
    except (BadConfiguration, UserError):
        with suppress(RuntimeError):  # the store is gone: rank 0 has counted all refusals
            refused, limit = store.add("muster/refused", 1), time.monotonic() + TOGETHER_SECONDS
            while refused < dist.get_world_size() and time.monotonic() < limit:
                time.sleep(0.05)
                refused = store.add("muster/refused", 0)
        raise


def break_world() -> None:
    """Ends all collectives of NCCL. Their kernels wait for a lost peer without end, and block the device. Any thread may call it.

    An aborted collective returns without an error, and its result is undefined. So nothing that follows counts: see `check_world`.
    """
    with _breaking:
        if not is_broken.is_set():
            is_broken.set()
            abort_nccl()


@contextmanager
def check_world() -> Iterator[None]:
    """Raises ConnectionLost if the world is broken (`break_world`) at the end, or if something fails in a broken world."""
    try:
        yield
    except Exception as error:
        if is_broken.is_set() and not isinstance(error, PeerLost):
            raise ConnectionLost(_with_rank("the world is broken")) from error
        raise
    if is_broken.is_set():
        raise ConnectionLost(_with_rank("the world is broken"))


@contextmanager
def detect_peer_loss() -> Iterator[None]:
    """Raises PeerLost if a collective fails, or the world is broken. PyTorch may raise a plain RuntimeError, whose text
    decides. Raises BadConfiguration if NCCL refuses a GPU that two processes use."""
    with check_world():
        try:
            yield
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if isinstance(error, dist.DistError) and _SAME_GPU.search(text):
                raise BadConfiguration(
                    "two processes use the same GPU, which NCCL refuses; give each process its own GPU, or write spec.communication: Gloo"
                ) from error
            if isinstance(error, dist.DistError) or (type(error) is RuntimeError and _PEER_LOST.search(text)):
                raise ConnectionLost(_with_rank(text)) from error
            raise


def _with_rank(text: str) -> str:
    return f"rank {os.environ.get('RANK', '0')}: {text[:500]}"
