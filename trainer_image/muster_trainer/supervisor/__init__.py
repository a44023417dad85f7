"""The supervisor, which is PID 1 of a replica. It starts the processes of an attempt, sends reports and reaps. It imports no framework."""
