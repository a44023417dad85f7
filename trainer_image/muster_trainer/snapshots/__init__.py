"""Snapshots in the memory of replicas: their layout, which ranks have copies, and from which snapshot a new attempt resumes.

This package imports no framework. `muster_trainer.pytorch.snapshots` takes, sends and restores snapshots. See
docs/architecture/snapshots.md.
"""
