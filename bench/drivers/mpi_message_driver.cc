// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// mpi_message_driver BYTES: two ranks send each other a message of so many bytes, there and back,
// and rank 0 prints the seconds of the median way. What an MPI does by itself, for
// bench/engines.py.

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<char> bytes(std::strtoul(argv[1], nullptr, 10), 1);
  const int count = static_cast<int>(bytes.size());
  std::array<double, 5> ways{};
  for (std::size_t i = 0; i <= ways.size(); ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    if (rank == 0) MPI_Send(bytes.data(), count, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(bytes.data(), count, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(bytes.data(), count, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    // The first one makes connections.
    if (i > 0) ways[i - 1] = (MPI_Wtime() - begin) / 2;
  }
  std::sort(ways.begin(), ways.end());
  if (rank == 0) std::printf("%.9f\n", ways[ways.size() / 2]);
  MPI_Finalize();
  return 0;
}
