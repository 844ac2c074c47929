// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// values_rank_program [choice]: without the argument, tries everything against the serial oracle:
// each collective by the chosen algorithm (that of STRETTO_ALGORITHM, if set) and otherwise by
// every algorithm for messages, exchanges of bytes, and puts and gets. Prints "right" on every
// rank, or what is wrong. Rank 0 always prints "chosen ALGORITHM: REASON" for an all_reduce.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "stretto/base/rank_vector.h"
#include "stretto/stretto.h"
#include "tests/support/algorithms_for.h"
#include "tests/support/problem.h"

namespace {

using namespace stretto;           // NOLINT: a test's program.
using namespace stretto::testing;  // NOLINT: what problem.h gives to tests.

std::string failure_of(Communicator& comm, const Problem& problem) {
  const Oracle oracle(problem);
  Trial trial(comm, oracle);
  trial.start().wait();
  const std::string failure = trial.failure();
  return failure.empty() ? "" : describe(problem) + ": " + failure;
}

std::string failure_of_algorithm(Communicator& comm, Problem problem) {
  const bool uneven_too = problem.collective != Collective::all_to_all;
  for (const bool registered : {false, true}) {
    problem.registered = registered;
    for (const std::size_t count : {0u, 3u, 1000u, 200003u}) {
      problem.count = count;
      const std::size_t share = (count + problem.ranks - 1) / problem.ranks;
      if (has_shares(problem.collective)) problem = with_equal_shares(problem, share);
      if (std::string text = failure_of(comm, problem); !text.empty()) return text;
    }
    if (!has_shares(problem.collective) || !uneven_too) continue;
    problem.shares.front() = 17;
    if (std::string text = failure_of(comm, problem); !text.empty()) return text;
  }
  return {};
}

std::string failure_of(Communicator& comm, Collective collective) {
  std::vector<std::string> algorithms = {""};
  if (std::getenv("STRETTO_ALGORITHM") == nullptr) {
    for (const auto* row : algorithms_for(collective, schedule::Access::messages)) {
      algorithms.emplace_back(row->name);
    }
  }
  // A library combines inputs in an order of its own; an algorithm that is named is stretto's own.
  const bool has_library = std::getenv("STRETTO_BACKEND") != nullptr;
  if (has_library && algorithms.size() > 2) algorithms.resize(2);
  // Only the first two where elements are only moved.
  constexpr std::array kReductions = {
      std::pair(DType::bf16, ReduceOp::sum), std::pair(DType::i64, ReduceOp::sum),
      std::pair(DType::f32, ReduceOp::sum), std::pair(DType::f64, ReduceOp::mean)};
  const auto tried = std::span(kReductions).first(reduces(collective) ? kReductions.size() : 2);
  for (const std::string& algorithm : algorithms) {
    for (const auto& [dtype, op] : tried) {
      const Problem problem{.collective = collective,
                            .dtype = dtype,
                            .op = op,
                            .ranks = comm.size(),
                            .root = comm.size() - 1,
                            .algorithm = algorithm,
                            .any_order = has_library && algorithm.empty()};
      if (std::string text = failure_of_algorithm(comm, problem); !text.empty()) return text;
    }
  }
  return {};
}

ByteVector bytes_of(int rank) {
  return ByteVector(static_cast<std::size_t>(rank) * 70001, std::byte(rank));
}

std::string failure_of_bytes(Communicator& comm) {
  const int rank = comm.rank().value();
  const ByteVector own = bytes_of(rank);
  const RankVector<ByteVector> all = all_gather_bytes(comm, own);
  if (std::ssize(all) != comm.size()) return "all_gather_bytes";
  for (int r = 0; r < comm.size(); ++r) {
    if (all[r] != bytes_of(r)) return "all_gather_bytes";
  }
  if (broadcast_bytes(comm, own, 1) != bytes_of(1)) return "broadcast_bytes";
  if (gather_bytes(comm, own, 0) != (rank == 0 ? all : RankVector<ByteVector>()))
    return "gather_bytes";
  if (scatter_bytes(comm, all, 1) != own) return "scatter_bytes";
  return {};
}

// Each rank puts its part into all ranks' memory, and gets all of the next rank's memory.
std::string failure_of_one_sided(Communicator& comm) {
  constexpr std::size_t kPart = 70001;
  const int next = (comm.rank().value() + 1) % comm.size();
  const auto part_of = [](int rank) { return std::vector<std::int64_t>(kPart, rank + 1); };
  std::vector<std::int64_t> all;
  for (int r = 0; r < comm.size(); ++r) {
    const std::vector<std::int64_t> part = part_of(r);
    all.insert(all.end(), part.begin(), part.end());
  }
  SymmetricBuffer<std::int64_t> memory(comm, all.size());
  for (int r = 0; r < comm.size(); ++r) {
    memory.put(part_of(comm.rank().value()), r,
               kPart * static_cast<std::size_t>(comm.rank().value()));
  }
  memory.fence();
  if (!std::ranges::equal(memory.span(), all)) return "put";
  std::vector<std::int64_t> got(all.size());
  memory.get(got, next, 0);
  memory.fence();
  return got == all ? "" : "get";
}

std::string failure_of_everything(Communicator& comm) {
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter,
        Collective::all_gather, Collective::gather, Collective::scatter, Collective::broadcast,
        Collective::all_to_all, Collective::barrier}) {
    if (std::string text = failure_of(comm, collective); !text.empty()) return text;
  }
  const std::string failure = failure_of_bytes(comm);
  return failure.empty() ? failure_of_one_sided(comm) : failure;
}

}  // namespace

int main(int argument_count, char**) {
  try {
    auto comm =
        join({.join_timeout = std::chrono::seconds(20), .timeout = std::chrono::seconds(20)});
    if (comm->rank() == 0) {
      const Explanation explanation = comm->explain(Collective::all_reduce, DType::f32, 1000);
      std::printf("chosen %s: %s\n", explanation.algorithm.c_str(), explanation.reason.c_str());
    }
    if (argument_count > 1) return 0;
    const std::string failure = failure_of_everything(*comm);
    std::printf("%s\n", failure.empty() ? "right" : failure.c_str());
    return failure.empty() ? 0 : 1;
  } catch (const std::exception& failure) {
    std::printf("failed: %s\n", failure.what());
    return 1;
  }
}
