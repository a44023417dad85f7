"""The connection of a training process to its machine and its supervisor: events, signals, memory, the parent process."""
