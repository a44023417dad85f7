"""The types of a TrainingJob, of its status and of presets, with their defaults. Imports nothing else of `muster`."""
