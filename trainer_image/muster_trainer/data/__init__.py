"""Which samples a step takes, and how they are shared out: pure functions."""

from muster_trainer.data.order import Order, batches_in_order, permutation
from muster_trainer.data.shares import portions, weighted_share

__all__ = ["Order", "batches_in_order", "permutation", "portions", "weighted_share"]
