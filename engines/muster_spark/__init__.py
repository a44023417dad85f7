"""The strategy Spark: a standalone cluster of one job. `strategy` is the operator's side, the other modules run in pods."""
