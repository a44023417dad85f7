"""The samples of each step, and their distribution over devices. The functions are pure."""

from muster_trainer.data.dataset import ArrayDataSet, DataSet
from muster_trainer.data.order import Order, batches_in_order, permutation
from muster_trainer.data.shares import weighted_share

__all__ = ["ArrayDataSet", "DataSet", "Order", "batches_in_order", "permutation", "weighted_share"]
