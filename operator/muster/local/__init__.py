"""Runs jobs as process groups on this machine. Start reading at `runner.py`."""
