"""The operator: `python -m muster.operator` runs TrainingJobs in a cluster. It is one of the two backends; `muster.local` is the other."""
