"""The PyTorch strategies."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_trainer.export import Exporter
    from muster_trainer.pytorch import export

    _: Exporter = export
