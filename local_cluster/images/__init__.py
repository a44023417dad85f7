"""Builds the images of Muster for tests."""
