"""The collectives for the task `collectives`: between the workers of MultiWorkerMirroredStrategy, and between the devices of
MirroredStrategy.

tf.distribute has all-gather and several implementations of all-reduce. It has no broadcast and no reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import tensorflow as tf

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.measure.collectives import Library
from muster_trainer.tensorflow.machine import REDUCTIONS, mirrored, prepare
from muster_trainer.tensorflow.world import COMMUNICATION, fingerprint, join, peers


@final
class Collectives(Library):
    """One worker of the world; see `muster_trainer.measure.collectives.Library`."""

    def __init__(self, spec: TrainerSpec) -> None:
        prepare(spec, deterministic=False)
        self.rank, self.world, self.strategy = join(spec)
        self.own = f"AllReduce {spec.communication}"
        self._sum = self._summing(COMMUNICATION[spec.communication])
        self._gather = _together(self.strategy, _all_gather)

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint()

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        whole, part = tf.zeros(floats), tf.zeros(floats // self.world)
        gpus = tf.config.list_physical_devices("GPU")
        calls = {
            f"AllReduce {name}": (self._summing(choice), whole) for name, choice in COMMUNICATION.items() if name != "NCCL" or gpus
        } | {"AllGather": (self._gather, part)}
        return {name: partial(self._guarded, call, value) for name, (call, value) in calls.items()}

    def _summing(self, implementation: Any) -> Any:
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
        return _together(self.strategy, lambda context, value: context.all_reduce(tf.distribute.ReduceOp.SUM, value, options=options))

    def _guarded(self, call: Any, value: Any) -> Any:
        """Runs a call and waits for its result, because TensorFlow may return before it is computed."""
        with peers(self.rank):
            return _awaited(self.strategy, call, value)

    def meet(self) -> object:
        return self._guarded(self._sum, [0.0])

    def first(self, number: int) -> int:
        return round(float(self._guarded(self._sum, [float(number if self.rank == 0 else 0)])[0]))

    def slowest(self, seconds: list[float]) -> list[float]:
        each: list[list[float]] = self._guarded(self._gather, seconds).numpy().reshape(self.world, -1).tolist()
        return [max(of_all) for of_all in zip(*each, strict=True)]


@final
class BetweenDevices(Library):
    """The only process of a job of MirroredStrategy. `world` counts devices; see `muster_trainer.measure.collectives.Library`."""

    rank = 0

    def __init__(self, spec: TrainerSpec) -> None:
        prepare(spec, deterministic=False)
        names = [name for name in REDUCTIONS if name != "NCCL" or tf.config.list_physical_devices("GPU")]
        self.strategies = {
            name: mirrored(replace(spec, communication=name)).strategy for name in dict.fromkeys((spec.communication, *names))
        }
        self.strategy = self.strategies[spec.communication]
        self.world: int = self.strategy.num_replicas_in_sync
        if self.world == 1:
            raise BadConfiguration("spec.options: this process has one device, and collectives need two; name more in options.devices")
        self.own = f"AllReduce {spec.communication}"
        self._sums = {name: _together(each, _all_reduce) for name, each in self.strategies.items()}
        self._gather = _together(self.strategy, _all_gather)

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint()

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        whole, part = tf.zeros(floats), tf.zeros(floats // self.world)
        calls = {f"AllReduce {name}": (self.strategies[name], call, whole) for name, call in self._sums.items()}
        calls["AllGather"] = (self.strategy, self._gather, part)
        return {name: partial(_awaited, *each) for name, each in calls.items()}


def _all_reduce(context: Any, value: tf.Tensor) -> Any:
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _all_gather(context: Any, value: tf.Tensor) -> Any:
    return context.all_gather(value, axis=0)


def _together(strategy: tf.distribute.Strategy, call: Callable[[Any, tf.Tensor], Any]) -> Any:
    """Compiles a call in which all replicas of the strategy take part."""

    def on_each(value: tf.Tensor) -> Any:
        return call(tf.distribute.get_replica_context(), tf.identity(value))  # the copy has a device, which reducing needs

    return tf.function(lambda value: strategy.run(on_each, args=(value,)), autograph=False)


def _awaited(strategy: tf.distribute.Strategy, call: Any, value: Any) -> Any:
    """Runs a call and waits for all results, because TensorFlow may return before they are computed. Returns the first one."""
    results = strategy.experimental_local_results(call(tf.convert_to_tensor(value)))
    for result in results:
        result[:1].numpy()
    return results[0]
