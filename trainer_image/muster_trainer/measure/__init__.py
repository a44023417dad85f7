"""Measurements of steps and collectives, and a plain TCP connection between the processes for them."""
