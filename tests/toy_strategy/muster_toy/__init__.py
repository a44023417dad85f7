"""A toy strategy: a launcher hands out work to the workers that a hostfile lists."""
