"""The first stage: what is true of a job now."""
