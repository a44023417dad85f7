"""The web page: all jobs, and one job's attempts, curves, use of time, explanation and logs, while it runs and afterwards."""
