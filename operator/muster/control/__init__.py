"""Runs the lifecycle core on a cluster: work queue, caches, reconciler, resync, and the channel of the supervisors. It reaches the API
server through the `Cluster` protocol."""
