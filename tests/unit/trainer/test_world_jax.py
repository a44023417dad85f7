"""Which errors of JAX mean that a peer is lost."""

from __future__ import annotations

import jax
import pytest

from muster_contract.errors import PeerLost
from muster_trainer.jax.world import World

pytestmark = pytest.mark.jax
LOST = "UNKNOWN: Gloo AllGather failed: [gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:1: Connection reset by peer"


def world_of(size: int) -> World:
    world = World()
    world.size = size
    return world


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_a_failed_collective_is_a_lost_peer_with_either_error(kind: type[Exception]) -> None:
    """numpy makes a ValueError of the error of an array that it reads."""
    with pytest.raises(PeerLost, match="rank 0: UNKNOWN: Gloo AllGather failed"), world_of(2).peers():
        raise kind(LOST)


def test_other_errors_and_those_of_a_world_of_one_are_passed_on() -> None:
    with pytest.raises(ValueError, match="shapes differ"), world_of(2).peers():
        raise ValueError("shapes differ")
    with pytest.raises(ValueError, match="Gloo"), world_of(1).peers():
        raise ValueError(LOST)


def test_a_peer_that_ends_before_it_names_its_devices_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX has the plain class of Python for this error."""
    ended = "Unable to initialize backend 'cpu': UNAVAILABLE: recvmsg:Connection reset by peer"

    def fail() -> None:
        raise RuntimeError(ended)

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(PeerLost, match="Connection reset by peer"):
        World()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    with pytest.raises(RuntimeError, match="Unable to initialize"):
        World()
