"""The JAX strategy: data-parallel training over processes and their devices."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_trainer.export import Exporter
    from muster_trainer.jax import export

    _: Exporter = export
