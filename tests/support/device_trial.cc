// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/device_trial.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "tests/support/double_ranks.h"

namespace stretto::testing {
namespace {

// The same bytes in both kinds of memory.
class Twin {
 public:
  Twin(Communicator& ranks, DType dtype, std::size_t count, std::uint64_t seed)
      : count_(count),
        dtype_(dtype),
        host_(count * size_bytes(dtype)),
        device_(ranks.allocate_bytes(host_.size(), ranks.device())) {
    Random random(seed);
    for (std::byte& byte : host_) byte = static_cast<std::byte>(random.next());
    std::ranges::copy(host_, reached());
  }
  View view(bool on_device) {
    return {on_device ? device_.bytes().data() : host_.data(), count_, dtype_};
  }
  bool are_same() const { return std::equal(host_.begin(), host_.end(), reached()); }

 private:
  std::byte* reached() const { return Double::get().reach(device_.bytes().data()); }

  std::size_t count_;
  DType dtype_;
  std::vector<std::byte> host_;
  Memory device_;
};

struct Operation {
  const char* name;
  // How many elements of input and output a share has, in shares: of one, or of all ranks.
  bool all_in;
  bool all_out;
  std::function<Work(Communicator&, const View&, const View&)> begin;
};

std::vector<Operation> operations(int root) {
  return {
      {"all_reduce", true, true,
       [](auto& ranks, auto& in, auto& out) { return ranks.all_reduce(in, out); }},
      {"mean", true, true,
       [](auto& ranks, auto& in, auto& out) {
         return ranks.all_reduce(in, out, {.op = ReduceOp::mean});
       }},
      {"all_reduce in place", true, true,
       [](auto& ranks, auto&, auto& out) { return ranks.all_reduce(out); }},
      {"reduce", true, true,
       [root](auto& ranks, auto& in, auto& out) { return ranks.reduce(in, out, {.root = root}); }},
      {"reduce_scatter", true, false,
       [](auto& ranks, auto& in, auto& out) { return ranks.reduce_scatter(in, out); }},
      {"all_gather", false, true,
       [](auto& ranks, auto& in, auto& out) { return ranks.all_gather(in, out); }},
      {"broadcast", true, true,
       [root](auto& ranks, auto&, auto& out) { return ranks.broadcast(out, {.root = root}); }},
      {"gather", false, true,
       [root](auto& ranks, auto& in, auto& out) { return ranks.gather(in, out, {.root = root}); }},
      {"scatter", true, false,
       [root](auto& ranks, auto& in, auto& out) { return ranks.scatter(in, out, {.root = root}); }},
      {"all_to_all", true, true,
       [](auto& ranks, auto& in, auto& out) { return ranks.all_to_all(in, out); }},
  };
}

// Of a list with a share for each rank.
std::string difference_of_unequal_shares(Communicator& ranks) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks.size(); ++r) counts.push_back(500u * static_cast<std::size_t>(r % 3));
  const std::size_t own = counts[static_cast<std::size_t>(ranks.rank().value())];
  const auto all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto seed = static_cast<std::uint64_t>(ranks.rank().value());
  Twin share(ranks, DType::f32, own, seed);
  Twin whole(ranks, DType::f32, all, seed + 100);
  for (const bool on_device : {false, true}) {
    ranks.all_gather(share.view(on_device), whole.view(on_device), {.counts = counts}).wait();
    ranks.reduce_scatter(whole.view(on_device), share.view(on_device), {.counts = counts}).wait();
  }
  return share.are_same() && whole.are_same() ? "" : "unequal shares";
}

}  // namespace

std::string difference_on_device(Communicator& ranks) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto rank = static_cast<std::uint64_t>(ranks.rank().value());
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32}) {
    for (const std::size_t share : {1u, 7u, 5003u}) {
      for (const Operation& operation : operations(ranks.size() - 1)) {
        Twin in(ranks, dtype, operation.all_in ? size * share : share, 2 * rank);
        Twin out(ranks, dtype, operation.all_out ? size * share : share, 2 * rank + 1);
        for (const bool on_device : {false, true}) {
          operation.begin(ranks, in.view(on_device), out.view(on_device)).wait();
        }
        if (in.are_same() && out.are_same()) continue;
        return fmt::format("{} of {} {} on rank {} of {}", operation.name, share, name(dtype), rank,
                           size);
      }
    }
  }
  return difference_of_unequal_shares(ranks);
}

}  // namespace stretto::testing
