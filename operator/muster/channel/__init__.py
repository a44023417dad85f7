"""The channel between supervisors and what decides about their job: the operator, or `muster run`."""
