"""The API server of Kubernetes: requests, watches, leader election and the work queue. `python -m muster.operator` is the operator."""
