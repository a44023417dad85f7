"""Which snapshots a spare copies, and how it gets them from another supervisor."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from muster_contract.reports import MAX_KEY, SnapshotServer, SnapshotSource
from muster_trainer.snapshots.arena import PAGE, Arena, FilledSlot, Header
from muster_trainer.snapshots.copies import plan_copies
from muster_trainer.snapshots.transfer import SECONDS, Offer
from muster_trainer.supervisor.snapshot_copier import SnapshotCopier
from muster_trainer.supervisor.snapshot_service import MOST_CLIENTS, SnapshotService
from tests.support.waiting import wait_until

MIB = 1 << 20


def header(shard: str, step: int, *, attempt: int = 0, job: str = "uid", identity: str = "same", size: int = 1000) -> Header:
    return Header(job, attempt, step, shard, identity, size, 0)


def filled(*headers: Header) -> list[FilledSlot]:
    return [FilledSlot(slot, each) for slot, each in enumerate(headers)]


def copied(offers: list[list[FilledSlot]], *held: Header, size: int = MIB, spare: int = 2) -> list[tuple[int, int, str, int]]:
    plan = plan_copies(offers, filled(*held), job="uid", size=size, spare=spare)
    return [(each.source, each.slot, each.header.shard, each.into) for each in plan.copies] if plan else []


def test_a_spare_copies_each_part_once_from_a_replica_that_has_it() -> None:
    offers = [filled(header("a", 5), header("b", 5)), filled(header("b", 5), header("a", 5))]
    assert [(source, shard) for source, _, shard, _ in copied(offers)] == [(0, "a"), (0, "b")]
    assert copied(offers, header("a", 5), header("a", 4), header("b", 5)) == []


def test_a_snapshot_that_is_under_way_is_not_copied() -> None:
    offers = [filled(header("a", 5), header("a", 6)), filled(header("b", 5))]
    assert {shard: slot for _, slot, shard, _ in copied(offers)} == {"a": 0, "b": 0}


def test_a_newer_part_takes_the_slot_of_the_oldest_one() -> None:
    offers = [filled(header("a", 7))]
    assert copied(offers, header("a", 5), header("a", 6)) == [(0, 0, "a", 0)]
    assert copied(offers, header("a", 6), header("a", 5)) == [(0, 0, "a", 1)]


def test_the_newest_attempt_counts_even_if_it_went_back() -> None:
    offers = [filled(header("a", 9, attempt=0), header("a", 3, attempt=1))]
    assert [slot for _, slot, _, _ in copied(offers)] == [1]


def test_snapshots_of_other_jobs_are_not_copied() -> None:
    assert copied([filled(header("a", 5, job="other"))]) == []


def test_a_world_of_another_size_does_not_hide_the_snapshots_of_this_one() -> None:
    older = [header(shard, 5, identity="larger") for shard in "abc"]
    assert [shard for _, _, shard, _ in copied([filled(*older, header("x", 1, attempt=1))])] == ["x"]


def test_spares_without_room_for_all_parts_copy_different_ones() -> None:
    offers = [filled(*(header(shard, 5) for shard in "abcd"))]
    slot = 3 * PAGE  # a header and the payload
    assert [[shard for _, _, shard, _ in copied(offers, size=PAGE + 4 * slot, spare=spare)] for spare in (4, 5)] == [["a", "b"], ["c", "d"]]
    assert copied(offers, size=PAGE + slot) == []


def test_a_part_that_is_larger_than_the_memory_is_not_copied() -> None:
    assert copied([filled(header("a", 5, size=1 << 62))]) == []


@pytest.fixture
def arenas() -> Iterator[list[Arena]]:
    """The memory of a member with a complete snapshot, and that of a spare."""
    descriptors = [os.memfd_create("test") for _ in range(2)]
    for descriptor in descriptors:
        os.ftruncate(descriptor, MIB)
    member, spare = map(Arena, descriptors)
    member.format(slots=4, stride=16 * PAGE)
    for slot, shard in enumerate("ab"):
        member.payload(slot, 1000)[:] = shard.encode() * 1000
        member.complete(slot, header(shard, 5))
    yield [member, spare]
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def source(arenas: list[Arena]) -> Iterator[SnapshotSource]:
    service = SnapshotService(lambda position: arenas[0] if position == 0 else None, loopback=True)
    yield SnapshotSource("127.0.0.1", service.address)
    service.close()


def test_a_spare_has_the_same_numbers_and_then_newer_ones(arenas: list[Arena], source: SnapshotSource) -> None:
    member, spare = arenas
    sentences: list[str] = []
    copier = SnapshotCopier([spare], lambda: [source], job="uid", spare=0, say=sentences.append)
    copier.start()
    try:
        wait_until(lambda: steps_of(spare) == [5, 5], "step 5 is copied")
        for slot, shard in enumerate("ab", start=2):  # the older snapshot stays until the newer one is complete
            member.payload(slot, 1000)[:] = shard.encode() * 1000
            member.complete(slot, header(shard, 6))
        wait_until(lambda: steps_of(spare) == [5, 5, 6, 6], "step 6 is copied")
    finally:
        copier.stop()
    for each in spare.filled_slots():
        assert bytes(spare.payload(each.slot, each.header.size)) == each.header.shard.encode() * 1000
    assert sentences == ["this spare has the snapshot of step 5 in its memory (parts: 2), and goes on to copy newer ones"]


def steps_of(arena: Arena) -> list[int]:
    return sorted(each.header.step for each in arena.filled_slots())


def test_a_spare_does_not_wait_for_a_replica_that_does_not_answer(arenas: list[Arena]) -> None:
    """The node of that replica may be lost, and then the next world waits for the spare."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = SnapshotSource("127.0.0.1", SnapshotServer(silent.getsockname()[1], "key"))
        copier = SnapshotCopier(arenas[1:], lambda: [source], job="uid", spare=0, say=print)
        copier.start()
        silent.accept()
        began = time.monotonic()
        copier.stop()
        assert time.monotonic() - began < SECONDS / 2
    assert list(arenas[1].filled_slots()) == []


def test_a_slot_that_changes_on_the_way_is_not_used(arenas: list[Arena], source: SnapshotSource) -> None:
    offer = Offer(source, 0)
    arenas[0].complete(0, header("a", 6))
    assert offer.fetch(0, memoryview(bytearray(1000)), until=lambda: False) is False
    assert offer.fetch(1, memoryview(bytearray(1000)), until=lambda: False) is True
    offer.close()


@pytest.mark.parametrize("position", [0, 1])
def test_a_client_without_the_key_or_of_a_process_that_is_absent_gets_nothing(position: int, source: SnapshotSource) -> None:
    wrong = SnapshotSource(source.host, SnapshotServer(source.server.port, "wrong" if position == 0 else source.server.key))
    with pytest.raises(OSError, match="closed"):
        Offer(wrong, position)


def test_clients_that_send_nothing_do_not_keep_others_out_for_ever(source: SnapshotSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_trainer.snapshots.transfer.SECONDS", 0.5)
    silent = [socket.create_connection((source.host, source.server.port)) for _ in range(MOST_CLIENTS)]

    def is_served() -> bool:
        try:
            Offer(source, 0).close()
        except OSError:
            return False
        return True

    wait_until(is_served, "a client is served")
    for each in silent:
        each.close()


def test_a_client_that_sends_its_key_byte_by_byte_is_closed(source: SnapshotSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_trainer.snapshots.transfer.SECONDS", 0.3)
    sent = 0
    with socket.create_connection((source.host, source.server.port)) as slow:

        def is_closed() -> bool:
            nonlocal sent
            with suppress(OSError):
                slow.sendall(b"x")
                sent += 1
                return bool(select.select([slow], [], [], 0)[0])
            return True

        wait_until(is_closed, "the client is closed")
    assert sent < MAX_KEY


def test_a_server_of_nonsense_gets_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = SnapshotSource("127.0.0.1", SnapshotServer(server.getsockname()[1], "key"))
        client = socket.create_connection
        connections = []

        def connected(*arguments: object, **named: object) -> socket.socket:
            connection = client(*arguments, **named)  # type: ignore[arg-type]
            connections.append(server.accept()[0])
            connections[-1].sendall(b"\xff" * 100)
            return connection

        monkeypatch.setattr(socket, "create_connection", connected)
        with pytest.raises(ValueError, match="offers"):
            Offer(source, 0)
        connections[0].close()
