"""The collectives between the devices of all processes, for the task `collectives`.

There is no broadcast, because JAX has none between CPUs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import jax
import numpy as np

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.jax.programs import on_devices
from muster_trainer.jax.world import AXIS, SHARED, fingerprint, join
from muster_trainer.measure.collectives import Library


@final
class Collectives(Library):
    """One process. `world` counts devices; see `muster_trainer.measure.collectives.Library`."""

    own = "AllReduce"

    def __init__(self, spec: TrainerSpec) -> None:
        self._world = join()
        self.rank, self.world = self._world.rank, self._world.devices
        if self.world == 1:
            raise BadConfiguration("spec.roles.worker: a world of one device has no collectives; write at least 2 workers or accelerators")
        self._programs = {
            name: on_devices(self._world, call, (SHARED,), SHARED)
            for name, call in {
                "AllReduce": lambda numbers: jax.lax.psum(numbers, AXIS),
                "AllGather": lambda numbers: jax.lax.all_gather(numbers, AXIS, tiled=True),
                "ReduceScatter": lambda numbers: jax.lax.psum_scatter(numbers, AXIS, tiled=True),
            }.items()
        }

    def fingerprint(self) -> Mapping[str, Any]:
        return fingerprint(threads=os.cpu_count() or 1)

    def operations(self, floats: int) -> Mapping[str, Callable[[], object]]:
        whole, part = self._zeros(floats), self._zeros(floats // self.world)
        values = {"AllReduce": whole, "AllGather": part, "ReduceScatter": whole}
        return {name: partial(self._run, name, value) for name, value in values.items()}

    def synchronise(self) -> object:
        return None

    def meet(self) -> object:
        return self._run("AllReduce", self._zeros(1))

    def first(self, number: int) -> int:
        return int(self._world.gather(str(number))[0])

    def slowest(self, seconds: list[float]) -> list[float]:
        each = map(json.loads, self._world.gather(json.dumps(seconds)))
        return [max(of_all) for of_all in zip(*each, strict=True)]

    def _zeros(self, floats: int) -> jax.Array:
        """`floats` numbers on each device."""
        return self._world.shared(np.zeros(floats * len(self._world.positions), np.float32))

    def _run(self, name: str, value: jax.Array) -> object:
        """Runs a collective. Returns its result when it is computed."""
        with self._world.peers():
            return jax.block_until_ready(self._programs[name](value))
