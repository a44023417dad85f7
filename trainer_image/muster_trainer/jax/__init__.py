"""JAX: data parallel over processes and their devices, as an Engine of `muster_trainer.training`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_trainer.export import Exporter
    from muster_trainer.jax import export

    _: Exporter = export
