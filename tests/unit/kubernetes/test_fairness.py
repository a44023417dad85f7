"""Fairness between namespaces: each gets its turn, and no key is lost or taken twice."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kubernetes.fairness import URGENT_TURNS, Line, Slots, namespace_of


def taken(line: Line, *, now: float = 0.0) -> list[str]:
    """All keys in the order in which the line gives them. Each is done before the next is taken."""
    keys = []
    while (key := line.take(now)) is not None:
        keys.append(key)
        line.done(key)
    return keys


def line_of(*keys: str, share: int = 100) -> Line:
    line = Line(share)
    for turn, key in enumerate(keys):
        line.put(key, turn / 1000 - 1, urgent=False)
    return line


def test_namespaces_take_turns_and_each_serves_its_earliest_key_first() -> None:
    assert taken(line_of("a/1", "a/2", "a/3", "b/1", "c/1", "b/2")) == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]


def test_no_namespace_has_more_than_its_share_at_once() -> None:
    line = line_of("a/1", "a/2", "a/3", "b/1", share=2)
    assert [line.take(0.0) for _ in range(4)] == ["a/1", "b/1", "a/2", None]
    line.put("c/1", 0.0, urgent=False)
    assert line.take(0.0) == "c/1"
    assert line.take(0.0) is None
    line.done("a/1")
    assert line.take(0.0) == "a/3"


def test_urgent_keys_go_first_and_other_keys_still_get_turns() -> None:
    line = line_of("a/1", "b/1")
    for number in range(10):
        line.put(f"c/{number}", 0.0, urgent=True)
    order = taken(line)
    assert [key[0] for key in order[: URGENT_TURNS + 1]] == ["c"] * URGENT_TURNS + ["a"]
    assert order.index("b/1") == 2 * URGENT_TURNS + 1


def calls_of_turns(namespaces: int) -> int:
    """The function calls that serve one key of each namespace."""
    line = line_of(*(f"{number}/job" for number in range(namespaces)))
    profile = cProfile.Profile()
    profile.enable()
    assert len(taken(line)) == namespaces
    profile.disable()
    return int(vars(pstats.Stats(profile))["total_calls"])


def test_eight_times_the_namespaces_need_eight_times_the_calls() -> None:
    assert calls_of_turns(800) < 12 * calls_of_turns(100)


def test_a_key_with_a_future_turn_is_taken_after_the_keys_that_are_due() -> None:
    line = Line(100)
    line.put("a/later", 5.0, urgent=False)
    line.put("b/now", 1.0, urgent=False)
    assert taken(line, now=2.0) == ["b/now", "a/later"]


def test_a_key_moves_only_forward() -> None:
    line = Line(100)
    line.put("a/1", 5.0, urgent=False)
    line.put("a/2", 3.0, urgent=False)
    line.put("a/1", 1.0, urgent=False)
    line.put("a/1", 9.0, urgent=False)
    assert len(line) == 2
    assert taken(line) == ["a/1", "a/2"]
    line.put("a/1", 1.0, urgent=False)
    line.put("a/2", 2.0, urgent=False)
    line.put("a/2", 2.0, urgent=True)
    assert taken(line) == ["a/2", "a/1"]


KEYS = st.sampled_from([f"{namespace}/{number}" for namespace in "abc" for number in range(4)])


@given(st.lists(st.tuples(KEYS, st.floats(0, 10), st.booleans()) | st.sampled_from(["take", "done"]), max_size=80), st.integers(1, 3))
def test_every_key_is_taken_once_and_within_the_share(steps: list[tuple[str, float, bool] | str], share: int) -> None:
    line, waiting, active = Line(share), set[str](), list[str]()

    def take(now: float) -> bool:
        key = line.take(now)
        if key is None:
            busy = Counter(map(namespace_of, active))
            assert all(busy[namespace_of(each)] >= share for each in waiting), "a key that may be taken up is taken up"
            return False
        waiting.remove(key)
        active.append(key)
        assert max(Counter(map(namespace_of, active)).values()) <= share
        return True

    for step in steps:
        if step == "take":
            take(5.0)
        elif step == "done":
            if active:
                line.done(active.pop(0))
        else:
            key, turn, urgent = step
            if key not in active:  # as in the queue
                line.put(key, turn, urgent=bool(urgent))
                waiting.add(key)
        assert len(line) == len(waiting)
        assert all(key in line for key in waiting)
    while waiting:
        if not take(5.0):
            line.done(active.pop(0))


@given(st.integers(1, 40), st.integers(2, 6))
def test_every_namespace_gets_a_turn_between_two_turns_of_another(count: int, namespaces: int) -> None:
    line = Line(1000)
    for number in range(count):
        for namespace in range(namespaces):
            line.put(f"{namespace}/{number}", number, urgent=False)
    order = [namespace_of(key) for key in taken(line, now=float(count))]
    assert all(len(set(order[begin : begin + namespaces])) == namespaces for begin in range(0, len(order), namespaces))


def test_namespaces_get_slots_in_turn() -> None:
    order: list[str] = []

    async def request(slots: Slots, namespace: str) -> None:
        async with slots.of(namespace):
            order.append(namespace)
            await asyncio.sleep(0)

    async def scene() -> None:
        slots = Slots(2)
        await asyncio.gather(*(request(slots, "greedy") for _ in range(20)), *(request(slots, "modest") for _ in range(3)))

    asyncio.run(scene())
    assert Counter(order) == {"greedy": 20, "modest": 3}
    assert [index for index, namespace in enumerate(order) if namespace == "modest"][-1] < 10


@pytest.mark.parametrize("cancelled", range(6))
def test_the_slot_of_a_cancelled_request_is_not_lost(cancelled: int) -> None:
    async def scene() -> int:
        slots, running, most = Slots(2), 0, 0

        async def request(namespace: str) -> None:
            nonlocal running, most
            async with slots.of(namespace):
                running += 1
                most = max(most, running)
                try:
                    await asyncio.sleep(0.001)
                finally:
                    running -= 1

        tasks = [asyncio.create_task(request("ab"[number % 2])) for number in range(6)]
        await asyncio.sleep(0)
        tasks[cancelled].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        running = 0
        async with asyncio.timeout(5):
            await asyncio.gather(*(request("c") for _ in range(4)))
        return most

    assert asyncio.run(scene()) == 2


def test_an_owner_of_many_requests_leaves_slots_to_others() -> None:
    async def scene() -> list[str]:
        slots, order, release = Slots(4, share=2), list[str](), asyncio.Event()

        async def request(owner: str) -> None:
            async with slots.of(owner):
                order.append(owner)
                await release.wait()

        tasks = [asyncio.create_task(request("greedy")) for _ in range(10)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(request("modest")) for _ in range(2)]
        await asyncio.sleep(0)
        begun = list(order)
        assert slots.waiting("greedy") == 8
        release.set()
        await asyncio.gather(*tasks)
        assert Counter(order) == {"greedy": 10, "modest": 2}
        return begun

    assert asyncio.run(scene()) == ["greedy", "greedy", "modest", "modest"]
