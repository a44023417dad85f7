"""The event recorder sends Events in order and in the background. A failure does not stop the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.kubernetes import event_recorder
from muster.kubernetes.errors import AlreadyExistsError, RefusedError, UnavailableError
from muster.kubernetes.event_recorder import EventRecorder


def numbered(number: int, namespace: str = "default") -> dict[str, Any]:
    return {"message": f"event {number}", "metadata": {"namespace": namespace}}


async def at_once(_: float) -> None:
    """The operator is idle at once."""


def test_events_are_created_in_order_and_a_refusal_does_not_stop_the_next() -> None:
    created: list[str] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        created.append(event["message"])
        if event == numbered(1):
            raise RefusedError("the namespace is being deleted")
        if event == numbered(2):
            raise AlreadyExistsError("it is there")
        return event

    async def scene() -> None:
        sender = EventRecorder(create, calm=at_once)
        for number in range(5):
            sender.publish(numbered(number))
        task = asyncio.create_task(sender.run())
        await sender.finish(10.0)
        task.cancel()

    asyncio.run(scene())
    assert created == [f"event {number}" for number in range(5)]


@pytest.mark.parametrize(("failures", "tries"), [(1, [0, 0, 1]), (11, [0] * 12 + [1]), (12, [0] * 12 + [1])])
def test_an_event_is_sent_again_to_a_server_that_does_not_answer(failures: int, tries: list[int]) -> None:
    tried: list[int] = []
    waits: list[float] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        tried.append(int(event["message"].removeprefix("event ")))
        if len(tried) <= failures:
            error = UnavailableError("no answer")
            error.retry_seconds = 30.0 if len(tried) == 1 else 0.0
            raise error
        return event

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def scene() -> None:
        sender = EventRecorder(create, calm=at_once, sleep=sleep)
        sender.publish(numbered(0))
        sender.publish(numbered(1))
        task = asyncio.create_task(sender.run())
        await sender.finish(10.0)
        task.cancel()

    asyncio.run(scene())
    assert tried == tries
    assert waits[0] == 30.0  # the server has asked for it
    assert all(0 < wait <= event_recorder.DELAYS.longest for wait in waits[1:])


def test_publish_never_waits_even_if_no_event_can_be_sent() -> None:
    async def create(_: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def scene() -> None:
        sender = EventRecorder(create, calm=at_once)
        task = asyncio.create_task(sender.run())
        for number in range(event_recorder.MOST_WAITING + 10):
            sender.publish(numbered(number))
        await sender.finish(0.01)
        task.cancel()

    asyncio.run(scene())


def test_events_wait_for_an_idle_moment_for_a_limited_time() -> None:
    created: list[str] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        created.append(event["message"])
        return event

    async def scene() -> None:
        calm, waited = asyncio.Event(), list[float]()

        async def until_calm(seconds: float) -> None:
            waited.append(seconds)
            await calm.wait()

        sender = EventRecorder(create, calm=until_calm)
        task = asyncio.create_task(sender.run())
        sender.publish(numbered(0))
        sender.publish(numbered(1))
        await sender.finish(0.05)
        assert created == []
        calm.set()
        await sender.finish(10.0)
        task.cancel()
        assert 0 < waited[1] < waited[0] <= event_recorder.LONGEST_WAIT

    asyncio.run(scene())
    assert created == ["event 0", "event 1"]


def test_a_namespace_with_many_events_does_not_displace_those_of_others() -> None:
    created: list[dict[str, Any]] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        created.append(event)
        return event

    async def scene() -> None:
        sender = EventRecorder(create, calm=at_once)
        for number in range(event_recorder.MOST_WAITING + 10):
            sender.publish(numbered(number, "many"))
        sender.publish(numbered(0, "few"))
        task = asyncio.create_task(sender.run())
        await sender.finish(10.0)
        sender.publish(numbered(1, "many"))
        await sender.finish(10.0)
        task.cancel()

    asyncio.run(scene())
    assert created[-2:] == [numbered(0, "few"), numbered(1, "many")]
    assert len(created) == event_recorder.MOST_WAITING_OF_ONE + 2
