"""Traces of jobs, for OpenTelemetry."""
