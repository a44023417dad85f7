"""What drives the lifecycle core on a cluster, whoever talks to the API server: work queue, caches, reconciler, resync; and the channel of
supervisors."""
