"""Evaluates measurements: the collectives of a world, and the predicted cost of a job in other worlds."""
