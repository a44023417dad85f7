"""What is accepted: reading job files, checking whole jobs, and the CRD with its CEL rules. Pure but for reading the named file."""
