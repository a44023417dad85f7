"""The ladder of recovery: where the state of a lost process is still to be found, best rung first.

1. `Survivors`: processes that have lost a peer keep their state, and go on in the next world.
2. `Memory`: snapshots in the memory of the replicas.
3. `Storage`: checkpoints.

Each rung offers the newest step that it has, restores it, and can save the state after the last step without the peers.
"""
