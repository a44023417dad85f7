"""Measures steps and collectives. The processes coordinate over plain TCP connections."""
