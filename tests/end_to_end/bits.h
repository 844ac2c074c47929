// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/fnv1a.h"
#include "stretto/base/random.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/threads.h"
#include "tests/support/algorithms_for.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {

// The algorithms by messages that promise the same bits, and "" for the chosen one.
inline std::vector<std::string> canonical_algorithms() {
  std::vector<std::string> names = {""};
  const auto rows = algorithms_for(Collective::all_reduce, schedule::Access::messages);
  for (const schedule::Algorithm* row : rows) {
    if (row->order == schedule::Order::canonical) names.emplace_back(row->name);
  }
  return names;
}

// A hash over the results of all-reduces of many sizes and types, by one algorithm (empty: chosen).
// It must not depend on the transport, nor on the algorithm as long as that is canonical.
inline std::uint64_t hash_of_all_reduces(Communicator& comm, const std::string& algorithm,
                                         bool registered) {
  std::uint64_t hash = fnv1a({});
  for (const std::size_t count : {0u, 1u, 7u, 1000u, 20011u, 150001u}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32}) {
      std::vector<std::byte> own(count * size_bytes(dtype));
      Memory memory = comm.allocate_bytes(own.size());
      const std::span<std::byte> bytes = registered ? memory.bytes() : std::span<std::byte>(own);
      Random random(count * 31 + static_cast<std::uint64_t>(comm.rank().value()));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() & 0x3f);
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
        comm.all_reduce(View(bytes.data(), count, dtype), {.op = op, .algorithm = algorithm})
            .wait();
        hash = fnv1a({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash);
      }
    }
  }
  return hash;
}

// The different hashes that ranks come to which are threads, on memory that they share and on none.
inline std::set<std::string> hashes_of_threads(int size) {
  std::set<std::string> hashes;
  std::mutex mutex;
  for (const bool shared_memory : {false, true}) {
    auto ranks = make_thread_ranks({.size = size, .shared_memory = shared_memory});
    on_threads_of(ranks, [&](auto& rank) {
      const std::uint64_t hash = hash_of_all_reduces(*rank, "", true);
      const std::lock_guard lock(mutex);
      hashes.insert(fmt::format("{:016x}", hash));
    });
  }
  return hashes;
}

}  // namespace stretto::testing
