"""Checkpoints: layout, manifest, fence, commit, selection and retention (docs/architecture/checkpoints.md).

This package imports no framework. A strategy writes its files into the directory that `Store.begin` returns. This package decides
whether they are a valid checkpoint.
"""

from muster_contract.checkpoint_layout import Fence
from muster_trainer.checkpoint.manifest import Commit, Manifest, read_back
from muster_trainer.checkpoint.selection import Selection, newest_step, select
from muster_trainer.checkpoint.store import Store

__all__ = ["Commit", "Fence", "Manifest", "Selection", "Store", "newest_step", "read_back", "select"]
