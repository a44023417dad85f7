"""What the operator and the trainer agree on. Standard library only: every image carries it."""
