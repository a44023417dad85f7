"""Turns the job files of other tools into TrainingJobs, with notes on what changes and what has no counterpart."""
