"""Muster on Kubernetes: the only importer of kopf and of the Kubernetes client. `python -m muster.kubernetes` is the operator."""
