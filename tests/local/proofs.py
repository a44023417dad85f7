"""Proofs of resuming that all frameworks share. Each takes the name of a strategy."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from muster_trainer.checkpoint.objects import Location
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.seeds import seeded_random

STEPS = 69
SLOW = {"stepDelaySeconds": 0.04}
"""Slows the training down, so that a test can act before it ends."""
SLOWER = {"stepDelaySeconds": 0.1}
"""The same for a test that acts in the last third."""


def uninterrupted(strategy: str, config: Mapping[str, Any] | None = None, *, size: int = 2, **fields: Any) -> BareWorld:
    """A finished run without storage. Equal ones run once."""
    return _finished(strategy, json.dumps(trainer(None, config=config, **fields)), size)


@cache
def _finished(strategy: str, document: str, size: int) -> BareWorld:
    with world(strategy, json.loads(document), size=size) as running:
        assert running.finish() == [0] * size, running.story()
    return running


def second_attempt(strategy: str, document: Mapping[str, Any], *, size: int = 2, **env: str) -> BareWorld:
    with world(strategy, document, size=size, attempt=1, **env) as running:
        assert running.finish() == [0] * size, running.story()
    return running


def killed_world_continues_bit_for_bit(strategy: str, directory: Location, config: Mapping[str, Any]) -> None:
    """Kills a random rank at least five steps after a commit, and compares every loss with an uninterrupted run's."""
    whole = uninterrupted(strategy, config).losses()
    assert sorted(whole) == list(range(1, STEPS + 1))
    random = seeded_random()
    step, rank = random.choice([25, 26, 27, 28, 45, 46, 47, 48]), random.choice([0, 1])
    with world(strategy, trainer(directory, config={**config, **SLOWER})) as first:
        first.wait_for_commit(step - step % 10 - 10)
        first.wait_for_step(step)
        first.kill(rank)
        codes = first.finish()
        assert codes[rank] == -signal.SIGKILL
        assert codes[1 - rank] == 20, first.story()
    second = second_attempt(strategy, trainer(directory, config=config))
    resumed_at_the_last_commit(first, second)
    assert {**first.losses(), **second.losses()} == whole, f"killed rank {rank} at {step}"
    redone = first.losses().keys() & second.losses().keys()
    assert all(first.losses()[one] == second.losses()[one] for one in redone)
    if first.events("commit")[-1]["reason"] != "PeerLost":
        resumed, last = second.events("resumed")[0]["step"], max(first.losses())  # on a busy machine the kill comes some steps late
        assert resumed in (last - last % 10, last - last % 10 - 10)
        assert sorted(redone) == list(range(resumed + 1, last + 1))


def resumed_at_the_last_commit(first: BareWorld, second: BareWorld) -> None:
    """The newest commit of a world that saved every ten steps and was killed. A save in progress may have been committed without an
    event."""
    last, resumed = first.events("commit")[-1], second.events("resumed")[0]["step"]
    assert resumed in (last["step"], last["step"] + 10)
    assert resumed <= max(first.losses())
    assert min(second.losses()) == resumed + 1
    assert last["reason"] != "PeerLost" or resumed == max(first.losses())


def the_last_step_is_saved_when_a_peer_is_gone(strategy: str, directory: Path, *, size: int = 2) -> None:
    """Kills the last rank between two saves, while all ranks sleep. No step is repeated, and every loss equals that of an undisturbed
    run bit for bit."""
    document = trainer(directory, config={"stepDelaySeconds": 1.0}, checkpoint={"everySteps": 5})
    with world(strategy, document, size=size) as first:
        step = first.wait_for_event("step", lambda event: event["step"] == 7)
        time.sleep(max(0.0, step["time"] + 0.5 - time.time()))  # during the delay of the next step
        first.kill(size - 1)
        assert first.finish() == [*[20] * (size - 1), -signal.SIGKILL], first.story()
    last = first.events("commit")[-1]
    assert (last["step"], last["reason"]) == (max(first.losses()), "PeerLost"), first.story()
    assert last["step"] in range(7, 10)  # a busy machine kills late
    second = second_attempt(strategy, trainer(directory), size=size)
    assert [event["step"] for event in second.events("resumed")] == [last["step"]]
    assert sorted(second.losses()) == list(range(last["step"] + 1, STEPS + 1))
    assert {**first.losses(), **second.losses()} == uninterrupted(strategy, size=size).losses()


def damaged_checkpoint_is_passed_over(strategy: str, directory: Path) -> None:
    """Runs once. Then flips a bit of the newest checkpoint, and truncates the one before."""
    document = trainer(directory)
    with world(strategy, document) as first:
        assert first.finish() == [0, 0], first.story()
    newest, before = sorted(directory.glob("step-*"), reverse=True)[:2]
    flipped = max((file for file in newest.iterdir() if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    cut = max((file for file in before.iterdir() if file.is_file()), key=lambda file: file.stat().st_size)
    cut.write_bytes(cut.read_bytes()[:-7])
    second = second_attempt(strategy, document)
    (resumed,) = second.events("resumed")
    assert resumed["committedStep"] == STEPS
    assert resumed["step"] == 50
    assert [skipped["path"] for skipped in resumed["skipped"]] == [str(newest), str(before)]
    first_notice, second_notice = second.events("notice")
    assert [first_notice["reason"], second_notice["reason"]] == ["CheckpointDamaged"] * 2
    assert second.losses() == {step: loss for step, loss in first.losses().items() if step > 50}


def losses_do_not_depend_on_the_world(strategy: str, sizes: list[int], **fields: Any) -> None:
    first, *others = (uninterrupted(strategy, size=size, **fields) for size in sizes)
    for other in others:
        losses_are_equal_to_a_millionth(first, other)


def losses_are_equal_to_a_millionth(one: BareWorld, other: BareWorld) -> None:
    """Worlds of another shape add the same floats in another order."""
    curve, same = ([float.fromhex(loss) for _, loss in sorted(each.losses().items())] for each in (one, other))
    difference = max(abs(a - b) for a, b in zip(curve, same, strict=True))
    assert difference < 1e-6, difference


def last_error(running: BareWorld) -> dict[str, Any]:
    return running.events("error")[-1]


def field_of(error: Mapping[str, Any]) -> str:
    """The field of the job that an error names."""
    return str(error["message"].partition(": ")[0])
