"""The TensorFlow strategies."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_trainer.export import Exporter
    from muster_trainer.tensorflow import export

    _: Exporter = export
