"""The commands of `muster`, one module for each. `main.py` has the list. A command imports what it needs when it runs."""
