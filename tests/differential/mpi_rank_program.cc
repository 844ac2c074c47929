// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// One rank of a job that runs the same random collectives through MPI and through stretto:
//
//   mpirun -n P mpi_rank_program SEED FILE OPERATIONS [canary | threads]
//
// FILE is where stretto's ranks meet. With the inputs, any order of reduction is exact. With
// "canary", MPI gets one wrong number, which must be noticed. With "threads", only stretto calls
// MPI: threads of each rank make groups at the same time.

#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/job/join.h"
#include "stretto/kernel/reduce_oracle.h"
#include "tests/support/problem.h"

namespace stretto::testing {
namespace {

struct Team {
  MPI_Comm mpi = MPI_COMM_NULL;
  std::unique_ptr<Communicator> stretto;  // Null if this rank is not in it.
};

MPI_Datatype mpi_type(DType dtype) {
  static const std::map<DType, MPI_Datatype> types = {
      {DType::f32, MPI_FLOAT}, {DType::f64, MPI_DOUBLE},  {DType::u8, MPI_UINT8_T},
      {DType::i8, MPI_INT8_T}, {DType::i32, MPI_INT32_T}, {DType::i64, MPI_INT64_T}};
  return types.at(dtype);
}

// A mean is a sum here, which is divided afterwards.
MPI_Op mpi_op(ReduceOp op) {
  static const std::map<ReduceOp, MPI_Op> ops = {
      {ReduceOp::sum, MPI_SUM},    {ReduceOp::mean, MPI_SUM},    {ReduceOp::product, MPI_PROD},
      {ReduceOp::min, MPI_MIN},    {ReduceOp::max, MPI_MAX},     {ReduceOp::bit_and, MPI_BAND},
      {ReduceOp::bit_or, MPI_BOR}, {ReduceOp::bit_xor, MPI_BXOR}};
  return ops.at(op);
}

void divide(Bytes& numbers, DType dtype, int divisor) {
  namespace oracle = kernel::oracle;
  oracle::with_type(dtype, [&]<class T>(T) {
    if constexpr (!std::is_class_v<T>) {
      for (std::size_t i = 0; i < numbers.size() / sizeof(T); ++i) {
        const T number = oracle::read<T>(numbers.data(), i);
        oracle::write(numbers.data(), i, oracle::divide(number, divisor));
      }
    }
  });
}

// Counts and displacements, as MPI takes them.
struct Layout {
  std::vector<int> counts;
  std::vector<int> begins;

  void add(std::size_t count) {
    begins.push_back(counts.empty() ? 0 : begins.back() + counts.back());
    counts.push_back(static_cast<int>(count));
  }
};

// One problem, until its results are compared: stretto's operation, as in all tests, and MPI's on
// the same inputs.
class BothTrials {
 public:
  BothTrials(Team& team, const Problem& problem, bool canary)
      : mpi_(team.mpi),
        rank_(team.stretto->rank().value()),
        oracle_(problem),
        trial_(*team.stretto, oracle_),
        input_(oracle_.input_of(rank_)),
        output_(oracle_.expected_of(rank_).size(), std::byte{99}) {
    if (canary && rank_ == 0 && !input_.empty()) input_.back() ^= std::byte{1};
  }

  // Runs both, stretto's first. That operation need not have ended when MPI's has.
  void run() {
    work_ = trial_.start();
    run_mpi();
    const Problem& problem = oracle_.problem();
    if (problem.op != ReduceOp::mean || !reduces(problem.collective)) return;
    divide(output_, problem.dtype, problem.ranks);
  }

  // Waits for stretto's operation. Returns what differs; empty if nothing does.
  std::string difference() {
    work_.wait();
    if (output_ != oracle_.expected_of(rank_)) return "MPI has another result than the oracle";
    return trial_.failure();
  }

 private:
  Layout shares() const {
    Layout layout;
    for (int r = 0; r < oracle_.problem().ranks && !oracle_.problem().shares.empty(); ++r) {
      layout.add(oracle_.problem().shares[r]);
    }
    return layout;
  }
  // In an all_to_all, what this rank sends to each rank or, if not `sends`, receives from each.
  Layout row(bool sends) const {
    const int ranks = oracle_.problem().ranks;
    Layout layout;
    for (int other = 0; other < ranks; ++other) {
      const int pair = sends ? rank_ * ranks + other : other * ranks + rank_;
      layout.add(oracle_.problem().shares[pair]);
    }
    return layout;
  }

  void run_mpi() {
    const Problem& problem = oracle_.problem();
    const MPI_Datatype type = mpi_type(problem.dtype);
    const MPI_Op op = mpi_op(problem.op);
    const int root = problem.root.value();
    const auto count_of = [&](const Bytes& bytes) {
      return static_cast<int>(bytes.size() / size_bytes(problem.dtype));
    };
    const int count = count_of(input_);
    const Layout layout = shares();
    switch (problem.collective) {
      case Collective::all_reduce:
        MPI_Allreduce(input_.data(), output_.data(), count, type, op, mpi_);
        break;
      case Collective::reduce:
        MPI_Reduce(input_.data(), output_.data(), count, type, op, root, mpi_);
        break;
      case Collective::reduce_scatter:
        MPI_Reduce_scatter(input_.data(), output_.data(), layout.counts.data(), type, op, mpi_);
        break;
      case Collective::all_gather:
        MPI_Allgatherv(input_.data(), count, type, output_.data(), layout.counts.data(),
                       layout.begins.data(), type, mpi_);
        break;
      case Collective::gather:
        MPI_Gatherv(input_.data(), count, type, output_.data(), layout.counts.data(),
                    layout.begins.data(), type, root, mpi_);
        break;
      case Collective::scatter:
        MPI_Scatterv(input_.data(), layout.counts.data(), layout.begins.data(), type,
                     output_.data(), count_of(output_), type, root, mpi_);
        break;
      case Collective::broadcast:
        output_ = input_;
        MPI_Bcast(output_.data(), count, type, root, mpi_);
        break;
      case Collective::all_to_all: {
        const Layout sent = row(true);
        const Layout received = row(false);
        MPI_Alltoallv(input_.data(), sent.counts.data(), sent.begins.data(), type, output_.data(),
                      received.counts.data(), received.begins.data(), type, mpi_);
        break;
      }
      default:
        MPI_Barrier(mpi_);
    }
  }

  MPI_Comm mpi_;
  int rank_;
  Oracle oracle_;
  Trial trial_;
  Bytes input_;  // MPI's, like the next.
  Bytes output_;
  Work work_;  // Last: ends before its buffers are freed.
};

std::unique_ptr<Communicator> join_at(const std::string& place) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return join(
      {.rank = rank, .size = size, .rendezvous = place, .timeout = std::chrono::seconds(30)});
}

// A random program and its operations in flight.
class Program {
 public:
  Program(std::uint64_t seed, const std::string& place, bool canary)
      : random_(seed), canary_(canary) {
    teams_.push_back({MPI_COMM_WORLD, join_at(place)});
    for (int i = 0; i < 3; ++i) split();
  }

  // Returns what went wrong, and with which operation; empty if nothing did.
  std::string run(int operations) {
    for (int number = 0; number < operations; ++number) {
      add(number);
      if (in_flight_.size() < 1 + number % 5u) continue;
      std::string failure = compare();
      if (!failure.empty()) return failure;
    }
    return compare();
  }

 private:
  // Each rank draws the options of all ranks, so that all draw the same.
  void split() {
    RankVector<SplitOptions> options;
    for (int r = 0; r < teams_.front().stretto->size(); ++r) {
      SplitOptions& own = options.emplace_back();
      if (random_.below(6) > 0) own.color = static_cast<int>(random_.below(2));
      own.key = static_cast<int>(random_.below(5));
    }
    const SplitOptions& own = options[teams_.front().stretto->rank()];
    Team& team = teams_.emplace_back();
    team.stretto = teams_.front().stretto->split(own);
    MPI_Comm_split(MPI_COMM_WORLD, own.color.value_or(MPI_UNDEFINED), own.key, &team.mpi);
  }

  void add(int number) {
    constexpr Collective kCollectives[] = {
        Collective::all_reduce, Collective::reduce,  Collective::reduce_scatter,
        Collective::all_gather, Collective::gather,  Collective::scatter,
        Collective::broadcast,  Collective::barrier, Collective::all_to_all};
    constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::u8,
                                 DType::i8,  DType::i32, DType::i64};
    Team& team = teams_[random_.below(teams_.size())];
    const DType dtype = kDtypes[random_.below(std::size(kDtypes))];
    Problem problem{.collective = kCollectives[random_.below(std::size(kCollectives))],
                    .dtype = dtype,
                    .op = static_cast<ReduceOp>(random_.below(kReduceOpCount)),
                    .in_place = random_.below(2) == 0,
                    .any_order = true};
    if (!supports(problem.op, dtype) || !reduces(problem.collective)) problem.op = ReduceOp::sum;
    const bool even = random_.below(2) == 0;
    const auto root = static_cast<int>(random_.below(1000));
    const std::size_t most = random_.below(8) == 0 ? 100000 : 50;
    const auto world_size = static_cast<std::size_t>(teams_.front().stretto->size());
    std::vector<std::size_t> counts;
    for (std::size_t i = 0; i < world_size * world_size; ++i) {
      counts.push_back(random_.below(4) == 0 ? 0 : random_.below(most));
      if (even) counts.back() = counts.front();
    }
    if (team.stretto == nullptr) return;
    problem.ranks = team.stretto->size();
    problem.root = root % problem.ranks;
    if (has_shares(problem.collective)) {
      problem = with_equal_shares(problem, 0);
      counts.resize(problem.shares.size());
      problem.shares = counts;
    } else if (problem.collective != Collective::barrier) {
      problem.count = counts.front();
    }
    in_flight_.emplace_back(fmt::format("operation {}: {}", number, testing::describe(problem)),
                            std::make_unique<BothTrials>(team, problem, canary_ && number == 9));
    in_flight_.back().second->run();
  }

  std::string compare() {
    for (const auto& [name, trial] : in_flight_) {
      const std::string difference = trial->difference();
      if (!difference.empty()) {
        return fmt::format("{}: on rank {} of the job {}", name,
                           teams_.front().stretto->rank().value(), difference);
      }
    }
    in_flight_.clear();
    return {};
  }

  Random random_;
  bool canary_;
  std::vector<Team> teams_;
  std::vector<std::pair<std::string, std::unique_ptr<BothTrials>>> in_flight_;
};

// Threads make groups, each from its own communicator. Which thread comes first, differs by rank.
std::string make_groups_in_threads(const std::string& place) {
  constexpr int kThreads = 4;
  constexpr int kGroups = 5;
  const auto world = join_at(place);
  std::vector<std::unique_ptr<Communicator>> teams;
  std::vector<std::string> troubles(kThreads);
  for (int i = 0; i < kThreads; ++i) teams.push_back(world->split({.color = 0}));
  const auto make_groups = [&](std::size_t thread) {
    try {
      for (int made = 0; made < kGroups; ++made) {
        const auto group = teams[thread]->split({.color = 0});
        std::int32_t sum = 1;
        group->all_reduce(std::span(&sum, 1)).wait();
        if (sum != group->size()) troubles[thread] = fmt::format("the sum is {}", sum);
      }
    } catch (const std::exception& error) {
      troubles[thread] = error.what();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(make_groups, i);
  for (std::thread& thread : threads) thread.join();
  std::string trouble;
  for (const std::string& one : troubles) trouble += one;
  return trouble;
}

// Returns what went wrong; empty if nothing did.
std::string run(char** arguments, bool canary, bool threads) {
  try {
    const std::string place = std::string("file://") + arguments[1];
    if (threads) return make_groups_in_threads(place);
    Program program(std::strtoull(arguments[0], nullptr, 10), place, canary);
    return program.run(std::atoi(arguments[2]));
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace
}  // namespace stretto::testing

int main(int argc, char** argv) {
  // With STRETTO_BACKEND=mpi, stretto calls MPI as well.
  int given = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
  const bool canary = argc == 5 && std::string_view(argv[4]) == "canary";
  const bool threads = argc == 5 && std::string_view(argv[4]) == "threads";
  if (argc != 4 && !canary && !threads) {
    std::fprintf(stderr, "usage: mpirun -n P %s SEED FILE OPERATIONS [canary | threads]\n",
                 argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const std::string failure = stretto::testing::run(argv + 1, canary, threads);
  if (!failure.empty()) {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::fprintf(stderr, "seed %s, %s\nagain: mpirun -n %d %s %s %s %s\n", argv[1], failure.c_str(),
                 size, argv[0], argv[1], argv[2], argv[3]);
    // When an mpirun ends a job, it may lose the last output of its ranks.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
