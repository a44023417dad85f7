"""The strategy Horovod: Muster starts every rank, without horovodrun. `strategy` is the operator's side, the other modules run in pods."""
