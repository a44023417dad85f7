"""The training loop, and its work between two steps: agreements, saves, evaluations, stops."""
