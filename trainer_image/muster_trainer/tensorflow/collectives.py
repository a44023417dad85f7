"""The collectives of tf.distribute, as the task `collectives` measures them in the world of MultiWorkerMirroredStrategy.

tf.distribute has all-reduce, by a choice of implementations, and all-gather; a broadcast or a reduce-scatter it does not offer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from muster_trainer.contract import TrainerSpec
from muster_trainer.tensorflow.machine import prepare
from muster_trainer.tensorflow.world import COMMUNICATION, fingerprint, join, peers


class Collectives:
    """One worker of the world; see `muster_trainer.collectives.Library`."""

    def __init__(self, spec: TrainerSpec) -> None:
        prepare(spec, deterministic=False)
        self.rank, self.world, self.strategy = join(spec)
        self.own = f"AllReduce {spec.communication}"
        self._sum = self._summing(COMMUNICATION[spec.communication])
        self._gather = self._function(lambda context, value: context.all_gather(value, axis=0))

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint()

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        whole, part = tf.zeros(floats), tf.zeros(floats // self.world)
        gpus = tf.config.list_physical_devices("GPU")
        calls = {
            f"AllReduce {name}": (self._summing(choice), whole) for name, choice in COMMUNICATION.items() if name != "NCCL" or gpus
        } | {"AllGather": (self._gather, part)}
        return {name: lambda call=call, value=value: self._guarded(call, value) for name, (call, value) in calls.items()}

    def _summing(self, implementation: Any) -> Any:
        options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
        return self._function(lambda context, value: context.all_reduce(tf.distribute.ReduceOp.SUM, value, options=options))

    def _function(self, call: Callable[[Any, tf.Tensor], tf.Tensor]) -> Any:
        """What all workers do together, as one graph."""

        def on_each(value: tf.Tensor) -> tf.Tensor:
            return call(tf.distribute.get_replica_context(), tf.identity(value))  # which has a device, as reducing needs it

        return tf.function(lambda value: self.strategy.run(on_each, args=(value,)), autograph=False)

    def _guarded(self, call: Any, value: Any) -> tf.Tensor:
        """The result, once it is here: TensorFlow may go on before."""
        with peers(self.rank):
            result = self.strategy.experimental_local_results(call(tf.convert_to_tensor(value)))[0]
            result[:1].numpy()
        return result

    def synchronise(self) -> object:
        return None

    def meet(self) -> object:
        return self._guarded(self._sum, [0.0])

    def first(self, number: int) -> int:
        return round(float(self._guarded(self._sum, [float(number if self.rank == 0 else 0)])[0]))

    def slowest(self, seconds: list[float]) -> list[float]:
        each: list[list[float]] = self._guarded(self._gather, seconds).numpy().reshape(self.world, -1).tolist()
        return [max(of_all) for of_all in zip(*each, strict=True)]
