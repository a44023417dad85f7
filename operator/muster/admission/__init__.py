"""Admission: reads job files, checks whole jobs, and generates the CRD with its CEL rules. Pure, except that it reads the named file."""
