"""Accepts a job with its preset, and checks the pods that it would get. The operator, the commands and the clients use it."""
