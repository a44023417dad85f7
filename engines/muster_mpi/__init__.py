"""The strategy MPI: mpirun of Open MPI starts the ranks, without ssh. `strategy` is the operator's side, the other modules run in pods."""
