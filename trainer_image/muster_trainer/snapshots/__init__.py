"""Snapshots in the memory of replicas: how they lie there, which ranks hold copies, and which one a new attempt resumes from.

No framework is imported here. `muster_trainer.pytorch.snapshots` takes, sends and restores them. See docs/architecture/recovery.md.
"""
