"""The interface between the operator and the trainer. Uses only the standard library, because every image contains it."""
