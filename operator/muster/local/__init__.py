"""The same jobs as process groups on this machine. `runner.py` reads from top to bottom."""
