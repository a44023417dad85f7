"""The training loop and what it does between two steps: agree, save, evaluate, stop."""
