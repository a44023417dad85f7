"""Why a job does not run, is slow or has failed, and what to do about it. Pure: a function of a snapshot of the cluster."""
