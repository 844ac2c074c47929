// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Only the standard's C bindings are used, so that one source serves every MPI.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <vector>

#include "bench/drivers/driver.h"

namespace stretto::bench {
namespace {

// On any error, MPI by default ends the job with a message, so no call's status is looked at.
class MpiLibrary final : public Library {
 public:
  MpiLibrary() : Library(of_world(MPI_Comm_rank), of_world(MPI_Comm_size)) {}
  ~MpiLibrary() override { MPI_Finalize(); }

  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string line(text);
    std::replace(line.begin(), line.end(), '\t', ' ');
    return line.substr(0, line.find('\n'));
  }
  bool runs_several() const override { return true; }
  // There is no allocate_registered(): memory from MPI_Alloc_mem promises nothing that collectives
  // of any of these libraries use.

  std::function<void()> make_call(const Job& job) override {
    if (job.count > INT_MAX) throw std::runtime_error("more elements than MPI counts");
    const int count = static_cast<int>(job.count);
    const int share = static_cast<int>(job.share);
    float* const output = job.output;
    const void* const input = job.input == job.output ? MPI_IN_PLACE : job.input;
    if (job.at_once > 1) {
      if (job.operation != "all_reduce" || job.input != job.output) return {};
      const int part = count / static_cast<int>(job.at_once);
      return [=, requests = std::vector<MPI_Request>(job.at_once)]() mutable {
        float* at = output;
        for (MPI_Request& request : requests) {
          MPI_Iallreduce(MPI_IN_PLACE, at, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
          at += part;
        }
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
      };
    }
    if (job.operation == "all_reduce") {
      return [=] { MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    }
    if (job.operation == "reduce_scatter") {
      return [=] {
        MPI_Reduce_scatter_block(input, output, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      };
    }
    if (job.operation == "all_gather") {
      return
          [=] { MPI_Allgather(input, share, MPI_FLOAT, output, share, MPI_FLOAT, MPI_COMM_WORLD); };
    }
    if (job.operation == "all_to_all") {
      return
          [=] { MPI_Alltoall(input, share, MPI_FLOAT, output, share, MPI_FLOAT, MPI_COMM_WORLD); };
    }
    if (job.operation == "broadcast") {
      return [=] { MPI_Bcast(output, count, MPI_FLOAT, 0, MPI_COMM_WORLD); };
    }
    if (job.operation == "reduce" && rank_ == 0) {
      return
          [=] { MPI_Reduce(MPI_IN_PLACE, output, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); };
    }
    if (job.operation == "reduce") {
      return [=] { MPI_Reduce(output, nullptr, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); };
    }
    if (job.operation == "barrier") return [] { MPI_Barrier(MPI_COMM_WORLD); };
    return {};
  }

 private:
  static int of_world(int (*ask)(MPI_Comm, int*)) {
    int answer = 0;
    ask(MPI_COMM_WORLD, &answer);
    return answer;
  }
};

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) {
  return stretto::bench::drive_or_explain(
      [] {
        MPI_Init(nullptr, nullptr);
        return std::make_unique<stretto::bench::MpiLibrary>();
      },
      argc, argv);
}
