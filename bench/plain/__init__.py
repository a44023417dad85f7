"""Training as a good engineer writes it by hand for one strategy: what bench/overhead.py holds the trainer against."""
