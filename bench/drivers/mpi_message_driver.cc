// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// mpi_message_driver BYTES PIECE: two ranks send each other BYTES bytes, there and back, as
// messages of PIECE bytes that are all begun at once. Rank 0 prints the seconds that one way took,
// as a median. This is what an MPI does by itself, for bench/engines.py.

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

enum class Direction { send, receive };

void move_pieces(std::vector<char>& bytes, std::size_t piece, int peer, Direction direction) {
  std::vector<MPI_Request> requests;
  for (std::size_t begin = 0; begin < bytes.size(); begin += piece) {
    const int count = static_cast<int>(std::min(piece, bytes.size() - begin));
    MPI_Request& request = requests.emplace_back();
    if (direction == Direction::send) {
      MPI_Isend(&bytes[begin], count, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
    } else {
      MPI_Irecv(&bytes[begin], count, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &request);
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t piece = argc == 3 ? std::strtoul(argv[2], nullptr, 10) : 0;
  if (piece == 0) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<char> bytes(std::strtoul(argv[1], nullptr, 10), 1);
  std::array<double, 5> ways{};
  for (std::size_t i = 0; i <= ways.size(); ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    move_pieces(bytes, piece, 1 - rank, rank == 0 ? Direction::send : Direction::receive);
    move_pieces(bytes, piece, 1 - rank, rank == 0 ? Direction::receive : Direction::send);
    // The first round makes connections.
    if (i > 0) ways[i - 1] = (MPI_Wtime() - begin) / 2;
  }
  std::sort(ways.begin(), ways.end());
  if (rank == 0) std::printf("%.9f\n", ways[ways.size() / 2]);
  MPI_Finalize();
  return 0;
}
