/* The number pi as an integral, over all ranks: mpicc -O2 -o pi pi.c && mpirun ./pi */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    const long intervals = 10000000;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double own = 0.0, pi;
    for (long i = rank; i < intervals; i += size) {
        double x = (i + 0.5) / intervals;
        own += 4.0 / (1.0 + x * x);
    }
    own /= intervals;
    MPI_Reduce(&own, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("pi is about %.10f with %d ranks\n", pi, size);
    MPI_Finalize();
    return 0;
}
