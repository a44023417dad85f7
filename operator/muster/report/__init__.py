"""A run's events as one HTML page: what happened, the loss curve with restarts marked, throughput, and where the time went."""
