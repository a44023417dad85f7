"""Muster on Kubernetes: the only importer of kopf and of the Kubernetes client. `python -m muster.kubernetes` is the operator.

`gateway.py` sends all requests. A change of a pod or job arrives in `watches.py`. `cache_updates.py` then puts it into the caches and the
job into the queue, and `muster.control.reconciler` makes a pass over the job.
"""
