"""Ray as the engine of a TrainingJob: `strategy` is the operator's side, the other modules are the trainer's side."""
