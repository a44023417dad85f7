"""PID 1 of a replica: starts the processes of an attempt, reports, reaps. Imports no framework."""
