"""Makes an HTML page of a run's events: the story, the loss curve with its restarts, the throughput, and the use of time."""
