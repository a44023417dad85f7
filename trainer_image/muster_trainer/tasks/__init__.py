"""What is trained: bundled tasks and a user's own module, behind one contract (see `module`)."""
