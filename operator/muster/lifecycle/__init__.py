"""The lifecycle core: (job, what is observed, now) -> (status, actions). Pure; one file per policy, `decide.py` lists them."""
