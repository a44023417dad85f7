"""The lifecycle core: (job, what is observed, now) -> (status, actions). It is pure. Each policy has its own file, and `decide.py` calls
all of them."""
