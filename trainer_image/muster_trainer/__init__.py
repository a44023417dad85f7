"""The trainer that runs inside a replica: supervisor, strategies, checkpoints and bundled tasks."""
