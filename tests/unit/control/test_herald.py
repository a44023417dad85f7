"""Events: told in their order, beside everything else, and no failure to tell one keeps back the next."""

from __future__ import annotations

import asyncio
from typing import Any

from muster.control import herald
from muster.control.errors import AlreadyExistsError, UnavailableError
from muster.control.herald import Herald


def told(number: int) -> dict[str, Any]:
    return {"message": f"event {number}"}


async def at_once(_: float) -> None:
    """It is calm now."""


def test_events_are_made_in_their_order_and_one_that_cannot_be_made_holds_up_none() -> None:
    made: list[str] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        made.append(event["message"])
        if event == told(1):
            raise UnavailableError("no answer")
        if event == told(2):
            raise AlreadyExistsError("it is there")
        return event

    async def scene() -> None:
        crier = Herald(create, calm=at_once)
        for number in range(5):
            crier.tell(told(number))
        task = asyncio.create_task(crier.run())
        await crier.finish(10.0)
        task.cancel()

    asyncio.run(scene())
    assert made == [f"event {number}" for number in range(5)]


def test_telling_never_waits_not_even_when_nothing_can_be_told() -> None:
    async def create(_: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def scene() -> None:
        crier = Herald(create, calm=at_once)
        task = asyncio.create_task(crier.run())
        for number in range(herald.MOST_WAITING + 10):
            crier.tell(told(number))
        await crier.finish(0.01)
        task.cancel()

    asyncio.run(scene())


def test_events_wait_for_a_calm_moment_but_each_no_longer_than_its_patience() -> None:
    made: list[str] = []

    async def create(event: dict[str, Any]) -> dict[str, Any]:
        made.append(event["message"])
        return event

    async def scene() -> None:
        calm, waited = asyncio.Event(), list[float]()

        async def until_calm(seconds: float) -> None:
            waited.append(seconds)
            await calm.wait()

        crier = Herald(create, calm=until_calm)
        task = asyncio.create_task(crier.run())
        crier.tell(told(0))
        crier.tell(told(1))
        await crier.finish(0.05)
        assert made == []
        calm.set()
        await crier.finish(10.0)
        task.cancel()
        assert 0 < waited[1] < waited[0] <= herald.PATIENCE

    asyncio.run(scene())
    assert made == ["event 0", "event 1"]
