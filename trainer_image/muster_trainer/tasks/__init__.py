"""Tasks: what a job trains. Bundled tasks and modules of users have the same interface (see `module`)."""
