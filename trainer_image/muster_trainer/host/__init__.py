"""What the process has to do with its machine and its supervisor: events, signals, memory, the parent process."""
