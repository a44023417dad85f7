"""The web page: all jobs, and the attempts, curves, use of time, explanation and logs of each job, during and after its run."""
