"""Hand-written training for one strategy each, to which bench/overhead.py compares the trainer."""
