"""The first stage: the facts about a job at this moment."""
