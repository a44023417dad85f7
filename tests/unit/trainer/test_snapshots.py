"""Snapshots in memory: how they lie there, where copies go, and which one counts."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from muster_trainer.snapshots.arena import HEADER_BYTES, PAGE, Arena, FilledSlot, Header, layout
from muster_trainer.snapshots.checksum import checksum, is_intact
from muster_trainer.snapshots.choice import CompleteSnapshot, choose
from muster_trainer.snapshots.payload import pack_list, starts_of, unpack_list
from muster_trainer.snapshots.placement import Place, place
from muster_trainer.snapshots.slots import Slots
from muster_trainer.training.recovery.memory import step_of
from tests.support.seeds import seeded_random

SIZE = 1 << 20


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("test")
    os.ftruncate(made, SIZE)
    yield made
    os.close(made)


def header(*, attempt: int = 0, step: int = 1, shard: str = "a", size: int = 0, total: int = 0) -> Header:
    return Header("uid", attempt, step, shard, "same", size, total)


def written(descriptor: int, content: bytes, *, slot: int = 0) -> Arena:
    arena = Arena(descriptor)
    arena.format(slots=4, stride=layout(SIZE, slots=4))
    arena.payload(slot, len(content))[:] = content
    arena.complete(slot, header(size=len(content), total=checksum(memoryview(content))))
    return arena


# the memory


def test_another_process_finds_what_was_written(descriptor: int) -> None:
    written(descriptor, b"numbers", slot=2)
    again = Arena(descriptor)
    (slot,) = again.filled_slots()
    assert (slot.slot, slot.header.size) == (2, 7)
    assert bytes(again.payload(2, 7)) == b"numbers"
    assert is_intact(again, 2)


def test_a_payload_that_was_changed_is_not_intact(descriptor: int) -> None:
    arena = written(descriptor, b"numbers")
    arena.payload(0, 7)[3] ^= 1
    assert not is_intact(Arena(descriptor), 0)


@pytest.mark.parametrize("size", [1, 8, 16384, 100_000, 600_000])
def test_a_checksum_finds_each_changed_bit_and_what_lies_elsewhere(size: int) -> None:
    content = bytearray(seeded_random().randbytes(size))
    total = checksum(memoryview(content))
    assert checksum(memoryview(bytes(content))) == total
    for at in {0, size // 2, size - 1}:
        content[at] ^= 16
        assert checksum(memoryview(content)) != total
        content[at] ^= 16
    if size > 8:
        moved = content[8:] + content[:8]
        assert checksum(memoryview(moved)) != total
    assert checksum(memoryview(content + b"\0")) != total


@pytest.mark.parametrize("at", [0, 8, 20, 60])
def test_a_slot_with_a_damaged_header_is_empty(descriptor: int, at: int) -> None:
    arena = written(descriptor, b"numbers")
    begin = arena.start(0) + at
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, begin)[0] ^ 255]), begin)
    assert list(Arena(descriptor).filled_slots()) == []


def test_a_slot_whose_header_is_nested_too_deeply_is_empty(descriptor: int) -> None:
    arena = written(descriptor, b"x")
    text = b"[" * (HEADER_BYTES - 100)
    block = struct.pack("<8sI32s", b"MusterS2", len(text), hashlib.sha256(text).digest()) + text
    os.pwrite(descriptor, block, arena.start(0))
    assert list(Arena(descriptor).filled_slots()) == []


@pytest.mark.parametrize(("text", "message"), [(b"[" * 100_000, "nested too deeply"), (b"12", "no list"), (b"{", "Expecting")])
def test_a_payload_without_a_list_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unpack_list(memoryview(struct.pack("<Q", len(text)) + text))


@pytest.mark.parametrize("event", [None, "", "{", "[" * 2000, "[]", "3", '{"event": "commit"}', '{"event": "step"}'])
def test_a_snapshot_without_the_event_of_its_step_can_be_restored(event: str | None) -> None:
    assert step_of(CompleteSnapshot((0, 1), ((0, 0),), (replace(header(), event=event),))) is None


def test_a_slot_is_empty_while_it_is_written(descriptor: int) -> None:
    arena = written(descriptor, b"numbers")
    arena.clear(0)
    assert list(Arena(descriptor).filled_slots()) == []


def test_another_layout_forgets_what_is_there(descriptor: int) -> None:
    arena = written(descriptor, b"numbers")
    arena.format(slots=4, stride=layout(SIZE, slots=4))
    assert len(list(arena.filled_slots())) == 1
    arena.format(slots=2, stride=layout(SIZE, slots=2))
    assert list(arena.filled_slots()) == []


def test_a_snapshot_overwrites_the_older_one_and_never_a_protected_one(descriptor: int) -> None:
    arena = written(descriptor, b"older")
    slots = Slots(arena, job="uid", attempt=0, identity="same")
    assert slots.free() == 1
    arena.complete(1, header(step=2))
    assert slots.free() == 0
    slots.protected = (0, 1)
    assert slots.free() == 1


@pytest.mark.parametrize("change", [{"job": "other"}, {"attempt": 0}, {"identity": "other"}])
def test_snapshots_of_other_jobs_shapes_and_later_attempts_do_not_count(descriptor: int, change: dict[str, Any]) -> None:
    arena = written(descriptor, b"numbers")
    arena.complete(0, header(attempt=1))
    assert Slots(arena, job="uid", attempt=1, identity="same").filled_slots()
    assert not Slots(arena, **{"job": "uid", "attempt": 1, "identity": "same", **change}).filled_slots()


def test_a_payload_lists_its_aligned_parts() -> None:
    listed = pack_list([["a", 3], ["b", 0]])
    assert unpack_list(memoryview(listed + b"abc")) == ([["a", 3], ["b", 0]], len(listed))
    assert starts_of([65, 0, 1], after=10) == [64, 192, 192, 256]
    with pytest.raises(ValueError, match="4 bytes"):
        unpack_list(memoryview(listed[:4]))


def test_the_slots_fit_into_the_memory() -> None:
    for slots in (2, 4, 6, 34):
        stride = layout(SIZE, slots=slots)
        assert PAGE + slots * stride <= SIZE
        assert stride > HEADER_BYTES
    assert layout(PAGE, slots=2) == 0


# where copies go


def pods(count: int, *, processes: int = 1, nodes: int | None = None) -> list[Place]:
    return [Place(f"pod-{pod}", f"node-{pod % (nodes or count)}") for pod in range(count) for _ in range(processes)]


def test_copies_go_round_the_pods() -> None:
    placed = place(pods(3), ["a", "b", "c"], copies=1)
    assert placed.copies == ((0, 1), (1, 2), (2, 0))
    assert (placed.slots, placed.holders) == (4, 2)


def test_without_copies_each_pod_keeps_only_its_own_shard() -> None:
    placed = place(pods(2), ["a", "b"], copies=0)
    assert (placed.copies, placed.keepers, placed.slots, placed.holders) == ((), {0, 1}, 2, 1)


def test_processes_of_a_pod_send_to_those_of_the_next() -> None:
    placed = place(pods(2, processes=2), ["a", "b", "c", "d"], copies=1)
    assert placed.copies == ((0, 2), (1, 3), (2, 0), (3, 1))


def test_no_copy_stays_on_the_node_of_its_original_if_there_is_another() -> None:
    places = [Place("p0", "x"), Place("p1", "x"), Place("p2", "y")]
    placed = place(places, ["a", "b", "c"], copies=1)
    assert all(places[sender].node != places[receiver].node for sender, receiver in placed.copies)
    assert len(placed.copies) == 3


def test_whole_copies_of_the_model_are_not_sent() -> None:
    placed = place(pods(3, processes=2), ["a"] * 6, copies=2)
    assert (placed.copies, placed.keepers, placed.slots) == ((), {0, 2, 4}, 2)


def test_a_shard_that_two_pods_have_gets_only_the_copies_that_it_lacks() -> None:
    placed = place(pods(4), ["a", "b", "a", "b"], copies=2)
    assert [sender for sender, _ in placed.copies] == [0, 1]
    assert placed.holders == 3


def test_there_are_no_more_copies_than_pods() -> None:
    placed = place(pods(2), ["a", "b"], copies=3)
    assert (placed.copies, placed.holders) == (((0, 1), (1, 0)), 2)


# which one counts


def slots(*headers: Header) -> list[FilledSlot]:
    return [FilledSlot(slot, each) for slot, each in enumerate(headers)]


def test_the_newest_snapshot_with_all_shards_counts() -> None:
    snapshot = choose(
        [
            slots(header(step=4, shard="a"), header(step=5, shard="a")),
            slots(header(step=4, shard="b"), header(step=4, shard="a")),
        ],
        ["a", "b"],
    )
    assert snapshot is not None
    assert (snapshot.step, snapshot.sources) == (4, ((0, 0), (1, 0)))


def test_a_lost_shard_comes_from_its_copy() -> None:
    snapshot = choose([[], slots(header(step=4, shard="b"), header(step=4, shard="a"))], ["a", "b"])
    assert snapshot is not None
    assert snapshot.sources == ((1, 1), (1, 0))


def test_nothing_counts_if_a_shard_is_lost_with_its_copies() -> None:
    assert choose([[], slots(header(shard="b"))], ["a", "b"]) is None
    assert choose([[], []], ["a", "b"]) is None


def test_parts_of_two_attempts_make_no_snapshot() -> None:
    assert choose([slots(header(attempt=0, shard="a")), slots(header(attempt=1, shard="b"))], ["a", "b"]) is None


def test_a_later_attempt_that_went_back_counts_more_than_an_older_one() -> None:
    snapshot = choose([slots(header(attempt=0, step=9), header(attempt=1, step=3))], ["a"])
    assert snapshot is not None
    assert snapshot.generation == (1, 3)
