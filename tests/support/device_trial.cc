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
#include "stretto/cuda_driver/driver.h"

namespace stretto::testing {
namespace {

// A communicator, and the device of its rank.
struct DeviceTrial {
  Communicator& ranks;
  const cuda::Driver& driver;
};

// Holds the same bytes in host and in device memory.
class Twin {
 public:
  Twin(const DeviceTrial& trial, DType dtype, std::size_t count, std::uint64_t seed)
      : driver_(trial.driver),
        count_(count),
        dtype_(dtype),
        host_(count * size_bytes(dtype)),
        device_(trial.ranks.allocate_bytes(host_.size(), trial.ranks.device())) {
    Random random(seed);
    for (std::byte& byte : host_) byte = static_cast<std::byte>(random.next());
    copy(device_.bytes().data(), host_.data());
  }
  View view(bool on_device) {
    return {on_device ? device_.bytes().data() : host_.data(), count_, dtype_};
  }
  bool are_same() const {
    std::vector<std::byte> found(host_.size());
    copy(found.data(), device_.bytes().data());
    return found == host_;
  }

 private:
  void copy(std::byte* to, const std::byte* from) const {
    if (host_.empty()) return;
    const cuda::Driver::Current current(driver_);
    const auto& call = driver_.call();
    const int said = call.copy(cuda::address_of(to), cuda::address_of(from), host_.size(), nullptr);
    driver_.status_of_call("cuMemcpyAsync", said).or_throw();
    driver_.status_of_call("cuCtxSynchronize", call.context_synchronize()).or_throw();
  }

  const cuda::Driver& driver_;
  std::size_t count_;
  DType dtype_;
  std::vector<std::byte> host_;
  Memory device_;
};

struct Operation {
  const char* name;
  // Whether the input and the output have a share for each rank, or only one share.
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
      {"all_to_all in place", true, true,
       [](auto& ranks, auto&, auto& out) { return ranks.all_to_all(out, out); }},
  };
}

// Operations that pack on the device. Each rank has its own factor.
std::vector<Operation> packed_operations(int root) {
  const auto factor = [](auto& ranks) { return 0.3 + ranks.rank().value(); };
  return {
      {"all_reduce of products", true, true,
       [=](auto& ranks, auto& in, auto& out) {
         return ranks.all_reduce(in, out, {.factor = factor(ranks)});
       }},
      {"all_reduce of products in place", true, true,
       [=](auto& ranks, auto&, auto& out) {
         return ranks.all_reduce(out, {.op = ReduceOp::max, .factor = factor(ranks)});
       }},
      {"reduce of products", true, true,
       [=](auto& ranks, auto& in, auto& out) {
         return ranks.reduce(in, out, {.root = root, .factor = factor(ranks)});
       }},
      {"reduce_scatter of products", true, false,
       [=](auto& ranks, auto& in, auto& out) {
         return ranks.reduce_scatter(in, out, {.factor = factor(ranks)});
       }},
  };
}

std::string difference_of(const DeviceTrial& trial, const Operation& operation, DType dtype,
                          std::size_t share) {
  Communicator& ranks = trial.ranks;
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto rank = static_cast<std::uint64_t>(ranks.rank().value());
  Twin in(trial, dtype, operation.all_in ? size * share : share, 2 * rank);
  Twin out(trial, dtype, operation.all_out ? size * share : share, 2 * rank + 1);
  for (const bool on_device : {false, true}) {
    operation.begin(ranks, in.view(on_device), out.view(on_device)).wait();
  }
  if (in.are_same() && out.are_same()) return "";
  return fmt::format("{} of {} {} on rank {} of {}", operation.name, share, name(dtype), rank,
                     size);
}

// Returns a list with a share for each rank. If `apart`, the shares lie in the reverse order.
template <class AnyView>
std::vector<AnyView> parts_of(const View& whole, const std::vector<std::size_t>& counts,
                              bool apart) {
  std::vector<AnyView> parts;
  std::size_t begin = apart ? whole.count : 0;
  for (const std::size_t count : counts) {
    if (apart) begin -= count;
    parts.push_back(whole.slice(begin, count));
    if (!apart) begin += count;
  }
  return parts;
}

// Returns how many elements a rank sends to each rank, or receives from it. Numbers differ, and
// some are 0; with more than two ranks, the last rank sends and receives nothing.
std::vector<std::size_t> parcels_of(int size, int rank, bool sent) {
  std::vector<std::size_t> counts;
  for (int other = 0; other < size; ++other) {
    const bool has_none = size > 2 && (rank == size - 1 || other == size - 1);
    const int from = sent ? rank : other, to = sent ? other : rank;
    counts.push_back(has_none ? 0u : 700u * static_cast<std::size_t>((from + 2 * to + 1) % 3));
  }
  return counts;
}

// Compares all_to_all with unequal shares: of one buffer, and of lists whose parts lie one behind
// the other or not.
std::string difference_of_parcels(const DeviceTrial& trial) {
  Communicator& ranks = trial.ranks;
  const auto sent = parcels_of(ranks.size(), ranks.rank().value(), true);
  const auto received = parcels_of(ranks.size(), ranks.rank().value(), false);
  const auto sum = [](const auto& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  const auto seed = static_cast<std::uint64_t>(ranks.rank().value());
  for (const DType dtype : {DType::u8, DType::f64}) {
    Twin from(trial, dtype, sum(sent), seed);
    Twin to(trial, dtype, sum(received), seed + 100);
    const auto run = [&](const char* what, const auto& begin) {
      for (const bool on_device : {false, true}) {
        begin(from.view(on_device), to.view(on_device)).wait();
      }
      return from.are_same() && to.are_same() ? std::string() : std::string(what);
    };
    std::string found = run("unequal all_to_all", [&](const View& in, const View& out) {
      return ranks.all_to_all(in, out, {.send_counts = sent, .recv_counts = received});
    });
    for (const bool apart : {false, true}) {
      if (!found.empty()) return found;
      found = run("all_to_all_list", [&](const View& in, const View& out) {
        return ranks.all_to_all_list(parts_of<ConstView>(in, sent, apart),
                                     parts_of<View>(out, received, apart));
      });
    }
    if (!found.empty()) return found;
  }
  return "";
}

// Compares gather and scatter with unequal shares, of which some are empty, and lists whose parts
// lie apart.
std::string difference_of_rooted_shares(Communicator& ranks, const std::vector<std::size_t>& counts,
                                        Twin& share, Twin& whole) {
  for (const bool on_device : {false, true}) {
    const View own = share.view(on_device), all = whole.view(on_device);
    ranks.gather(own, all, {.root = 1, .counts = counts}).wait();
    ranks.scatter(all, own, {.root = 1, .counts = counts}).wait();
    const auto lists = parts_of<View>(all, counts, true);
    ranks.all_gather_list(own, lists).wait();
    ranks
        .reduce_scatter_list(parts_of<ConstView>(all, counts, true), own,
                             {.factor = 0.7 + ranks.rank().value()})
        .wait();
    ranks.all_reduce_coalesced(lists, {.factor = 0.1}).wait();
  }
  return share.are_same() && whole.are_same() ? "" : "shares that a root has, and lists";
}

// Compares collectives with unequal shares and lists.
std::string difference_of_unequal_shares(const DeviceTrial& trial) {
  Communicator& ranks = trial.ranks;
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks.size(); ++r) counts.push_back(500u * static_cast<std::size_t>(r % 3));
  const std::size_t own = counts[static_cast<std::size_t>(ranks.rank().value())];
  const auto all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto seed = static_cast<std::uint64_t>(ranks.rank().value());
  Twin share(trial, DType::f32, own, seed);
  Twin whole(trial, DType::f32, all, seed + 100);
  for (const bool on_device : {false, true}) {
    ranks.all_gather(share.view(on_device), whole.view(on_device), {.counts = counts}).wait();
    ranks.reduce_scatter(whole.view(on_device), share.view(on_device), {.counts = counts}).wait();
  }
  if (!share.are_same() || !whole.are_same()) return "unequal shares";
  if (ranks.size() == 1) return "";
  const std::string found = difference_of_rooted_shares(ranks, counts, share, whole);
  return found.empty() ? difference_of_parcels(trial) : found;
}

}  // namespace

std::string difference_on_device(Communicator& ranks, const std::string& driver_file) {
  const auto driver = cuda::Driver::open(driver_file, ranks.device().value()).or_throw();
  const DeviceTrial trial{ranks, *driver};
  const auto compare = [&](const std::vector<Operation>& all, const std::vector<DType>& dtypes) {
    for (const DType dtype : dtypes) {
      for (const std::size_t share : {1u, 7u, 5003u}) {
        for (const Operation& operation : all) {
          std::string found = difference_of(trial, operation, dtype, share);
          if (!found.empty()) return found;
        }
      }
    }
    return std::string();
  };
  const int root = ranks.size() - 1;
  std::string found = compare(operations(root), {DType::f32, DType::f64, DType::bf16, DType::i32});
  if (found.empty()) {
    found = compare(packed_operations(root), {DType::f32, DType::f64, DType::bf16, DType::f16});
  }
  if (!found.empty()) return found;
  return difference_of_unequal_shares(trial);
}

}  // namespace stretto::testing
