"""How the threads are joined in which tf.distribute traces what replicas run."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from muster_trainer.tensorflow.machine import join_threads

JOIN = tf.train.Coordinator.join


class Ending:
    """A thread that has nothing left to do."""

    def __init__(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def join(self, timeout: float) -> None:
        self.alive = False


@pytest.mark.parametrize(("join", "looks"), [(JOIN, [1.0]), (join_threads, [])])
def test_a_thread_that_is_ending_is_not_waited_for_by_the_second(join: Any, looks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's own waits: what takes its place can go once that no longer holds."""
    coordinator = tf.train.Coordinator()
    thread, waited = Ending(), []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        thread.join(seconds)
        return False

    monkeypatch.setattr(coordinator, "wait_for_stop", wait)
    join(coordinator, iter([thread]), 120)
    assert waited == looks
