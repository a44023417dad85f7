"""The second stage: computes the next status and the actions from a status and facts."""
