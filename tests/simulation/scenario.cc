// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/scenario.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/schedule/algorithms.h"
#include "tests/simulation/oracle.h"

namespace stretto::simulation {
namespace {

// Longer than a segment of any collective (see Group) on the few ranks that get this much.
constexpr std::size_t kLargeBytes = 400 * 1024;
constexpr int kLargeRanksMax = 3;
constexpr std::byte kUntouched{0x5a};

std::size_t draw_count(Random& random, const ScenarioOptions& options, std::size_t element_bytes) {
  const std::uint64_t kind = random.below(100);
  if (options.large && options.ranks <= kLargeRanksMax && kind < 3) {
    return (kLargeBytes + random.below(kLargeBytes)) / element_bytes;
  }
  if (kind < 15) return random.below(3000);
  if (kind < 30) return random.below(3);
  return random.below(60);
}

bool is_integer(DType dtype) {
  return !is_floating_point(dtype) && !is_complex(dtype) && dtype != DType::boolean;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Bytes part(const Bytes& bytes, std::size_t begin, std::size_t length) {
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(length)};
}

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// A collective whose result is computed from everybody's input.
class CollectiveScenario final : public Scenario {
 public:
  CollectiveScenario(Random& random, const ScenarioOptions& options, Collective collective);

  Work begin(Communicator& comm) override;
  std::string check(int rank) const override;
  std::string describe() const override;

 private:
  using Counts = std::vector<std::size_t>;

  void draw_kind(Random& random, const ScenarioOptions& options);
  void draw_counts(Random& random, const ScenarioOptions& options);
  void make_inputs(Random& random);
  void expect();
  void expect_moves();
  void make_buffers();

  std::size_t bytes_of(std::size_t count) const { return count * size_bytes(dtype_); }
  std::size_t begin_of(std::size_t rank) const {
    return bytes_of(std::accumulate(counts_.begin(), counts_.begin() + static_cast<long>(rank),
                                    std::size_t{0}));
  }
  // Where the input lies in the output of an operation in place.
  std::size_t place(std::size_t rank) const {
    return collective_ == Collective::all_gather ? begin_of(rank) : 0;
  }
  bool in_place_on(std::size_t rank) const {
    return in_place_ && (collective_ != Collective::reduce || rank == root_);
  }
  // What options get: nothing where all shares are equal.
  Counts listed(const Counts& counts) const { return uneven_ ? counts : Counts(); }
  Counts received(std::size_t rank) const;

  std::size_t ranks_;
  Collective collective_;
  std::string algorithm_;
  bool uneven_ = false;
  bool in_place_ = false;
  bool own_order_ = false;  // Whether the algorithm has an order of combination of its own.
  DType dtype_ = DType::u8;
  ReduceOp op_ = ReduceOp::sum;
  std::size_t root_ = 0;
  Counts counts_;             // Of each rank's share.
  std::vector<Counts> sent_;  // Of an all_to_all: from each rank to each.
  std::vector<Bytes> inputs_;
  std::vector<Bytes> expected_;
  std::vector<Bytes> input_buffers_;
  std::vector<Bytes> output_buffers_;
};

CollectiveScenario::CollectiveScenario(Random& random, const ScenarioOptions& options,
                                       Collective collective)
    : ranks_(static_cast<std::size_t>(options.ranks)), collective_(collective) {
  root_ = random.below(ranks_);
  draw_kind(random, options);
  draw_counts(random, options);
  make_inputs(random);
  expect();
  make_buffers();
}

void CollectiveScenario::draw_kind(Random& random, const ScenarioOptions& options) {
  constexpr std::array kInPlace = {Collective::all_reduce, Collective::reduce,
                                   Collective::all_gather};
  constexpr std::array kUneven = {Collective::reduce_scatter, Collective::all_gather,
                                  Collective::gather, Collective::scatter, Collective::all_to_all};
  const auto among = [&](const auto& list) {
    return std::find(list.begin(), list.end(), collective_) != list.end();
  };
  uneven_ = among(kUneven) && random.below(3) == 0;
  in_place_ = among(kInPlace) && random.below(3) == 0;
  const schedule::Algorithm* chosen = nullptr;
  auto algorithms = schedule::algorithms_for(collective_, schedule::Access::messages);
  std::erase_if(algorithms, [&](const auto* row) { return uneven_ && row->equal_chunks; });
  if (!algorithms.empty() && random.below(4) > 0) {
    chosen = algorithms[random.below(algorithms.size())];
    algorithm_ = chosen->name;
  }
  own_order_ = chosen != nullptr && chosen->order == schedule::Order::fixed;
  const auto draws = [&](DType dtype) {
    if (!reduces(collective_)) return true;
    if (!supports(op_, dtype)) return false;
    // The sign of a zero in a product of complex numbers depends on the order.
    const bool depends = own_order_ && is_complex(dtype) && op_ == ReduceOp::product;
    return is_integer(dtype) || (!options.sensitive && !depends);
  };
  do {
    dtype_ = static_cast<DType>(random.below(kDTypeCount));
    op_ = options.sensitive ? ReduceOp::sum : static_cast<ReduceOp>(random.below(kReduceOpCount));
  } while (!draws(dtype_));
}

void CollectiveScenario::draw_counts(Random& random, const ScenarioOptions& options) {
  const std::size_t count = draw_count(random, options, size_bytes(dtype_));
  const auto draw_share = [&] { return uneven_ ? random.below(2 * count + 1) : count; };
  for (std::size_t r = 0; r < ranks_; ++r) counts_.push_back(draw_share());
  if (collective_ != Collective::all_to_all) return;
  sent_.resize(ranks_);
  for (Counts& counts : sent_) {
    for (std::size_t r = 0; r < ranks_; ++r) counts.push_back(draw_share());
  }
}

CollectiveScenario::Counts CollectiveScenario::received(std::size_t rank) const {
  Counts counts;
  for (const Counts& sent : sent_) counts.push_back(sent[rank]);
  return counts;
}

void CollectiveScenario::make_inputs(Random& random) {
  for (std::size_t r = 0; r < ranks_; ++r) {
    const auto elements = [&]() -> std::size_t {
      switch (collective_) {
        case Collective::all_gather:
        case Collective::gather:
          return counts_[r];
        case Collective::reduce_scatter:
          return sum(counts_);
        case Collective::scatter:
          return r == root_ ? sum(counts_) : 0;
        case Collective::all_to_all:
          return sum(sent_[r]);
        case Collective::barrier:
          return 0;
        default:
          return counts_[0];
      }
    }();
    inputs_.push_back(own_order_ ? draw_order_free_values(random, dtype_, op_, elements)
                                 : draw_values(random, dtype_, elements));
  }
}

void CollectiveScenario::expect() {
  // What no result is written to.
  expected_.assign(ranks_, Bytes(24, kUntouched));
  if (!reduces(collective_)) return expect_moves();
  const Bytes whole = reduced(inputs_, dtype_, op_);
  for (std::size_t r = 0; r < ranks_; ++r) {
    if (collective_ == Collective::all_reduce) expected_[r] = whole;
    if (collective_ == Collective::reduce && r == root_) expected_[r] = whole;
    if (collective_ == Collective::reduce_scatter) {
      expected_[r] = part(whole, begin_of(r), bytes_of(counts_[r]));
    }
  }
}

void CollectiveScenario::expect_moves() {
  Bytes all;
  for (const Bytes& input : inputs_) append(all, input);
  for (std::size_t r = 0; r < ranks_; ++r) {
    switch (collective_) {
      case Collective::broadcast:
        expected_[r] = inputs_[root_];
        break;
      case Collective::all_gather:
        expected_[r] = all;
        break;
      case Collective::gather:
        if (r == root_) expected_[r] = all;
        break;
      case Collective::scatter:
        expected_[r] = part(inputs_[root_], begin_of(r), bytes_of(counts_[r]));
        break;
      case Collective::all_to_all:
        expected_[r].clear();
        for (std::size_t s = 0; s < ranks_; ++s) {
          const Counts before(sent_[s].begin(), sent_[s].begin() + static_cast<long>(r));
          append(expected_[r], part(inputs_[s], bytes_of(sum(before)), bytes_of(sent_[s][r])));
        }
        break;
      default:
        break;
    }
  }
}

void CollectiveScenario::make_buffers() {
  input_buffers_ = inputs_;
  for (std::size_t r = 0; r < ranks_; ++r) {
    Bytes& output = output_buffers_.emplace_back(expected_[r].size(), kUntouched);
    if (collective_ == Collective::broadcast) output = inputs_[r];
    if (!in_place_on(r)) continue;
    std::copy(inputs_[r].begin(), inputs_[r].end(),
              output.begin() + static_cast<std::ptrdiff_t>(place(r)));
  }
}

Work CollectiveScenario::begin(Communicator& comm) {
  const auto r = static_cast<std::size_t>(comm.rank());
  const auto count = [&](const Bytes& bytes) { return bytes.size() / size_bytes(dtype_); };
  const View output(output_buffers_[r].data(), count(output_buffers_[r]), dtype_);
  const ConstView input = in_place_on(r)
                              ? ConstView(output.data + place(r), count(inputs_[r]), dtype_)
                              : ConstView(input_buffers_[r].data(), count(inputs_[r]), dtype_);
  const auto root = static_cast<std::int32_t>(root_);
  switch (collective_) {
    case Collective::all_reduce:
      return comm.all_reduce(input, output, {.op = op_, .algorithm = algorithm_});
    case Collective::reduce:
      return comm.reduce(input, output, {.op = op_, .root = root, .algorithm = algorithm_});
    case Collective::reduce_scatter:
      return comm.reduce_scatter(input, output,
                                 {.op = op_, .counts = listed(counts_), .algorithm = algorithm_});
    case Collective::all_gather:
      return comm.all_gather(input, output, {.counts = listed(counts_), .algorithm = algorithm_});
    case Collective::gather:
      return comm.gather(input, output,
                         {.root = root, .counts = listed(counts_), .algorithm = algorithm_});
    case Collective::scatter:
      return comm.scatter(input, output,
                          {.root = root, .counts = listed(counts_), .algorithm = algorithm_});
    case Collective::all_to_all:
      return comm.all_to_all(input, output,
                             {.send_counts = listed(sent_[r]),
                              .recv_counts = listed(received(r)),
                              .algorithm = algorithm_});
    case Collective::broadcast:
      return comm.broadcast(output, {.root = root, .algorithm = algorithm_});
    default:
      return comm.barrier({.algorithm = algorithm_});
  }
}

std::string CollectiveScenario::check(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  if (input_buffers_[r] != inputs_[r]) return "the input was changed";
  const auto [wrong, right] =
      std::mismatch(output_buffers_[r].begin(), output_buffers_[r].end(), expected_[r].begin());
  if (wrong == output_buffers_[r].end()) return {};
  return fmt::format("byte {} of {} is {:#04x}, not {:#04x}", wrong - output_buffers_[r].begin(),
                     expected_[r].size(), static_cast<int>(*wrong), static_cast<int>(*right));
}

std::string CollectiveScenario::describe() const {
  return fmt::format("{}({} {} [{}] root {}) by {}{}{}", name(collective_), name(op_), name(dtype_),
                     fmt::join(counts_, " "), root_, algorithm_.empty() ? "choice" : algorithm_,
                     uneven_ ? ", uneven" : "", in_place_ ? ", in place" : "");
}

// Every rank sends one message and receives one.
class MessageScenario final : public Scenario {
 public:
  MessageScenario(Random& random, const ScenarioOptions& options)
      : ranks_(options.ranks),
        distance_(1 + static_cast<int>(random.below(static_cast<std::uint64_t>(ranks_ - 1)))),
        tag_(static_cast<int>(random.below(1u << 30))),
        from_any_(random.below(4) == 0) {
    for (int r = 0; r < ranks_; ++r) {
      outgoing_.push_back(draw_values(random, DType::u8, draw_count(random, options, 1)));
    }
    incoming_.resize(outgoing_.size());
  }

  Work begin(Communicator& comm) override {
    const int self = comm.rank().value();
    Bytes& incoming = incoming_[static_cast<std::size_t>(self)];
    incoming.assign(sent_to(self).size(), kUntouched);
    const Rank source = from_any_ ? kAnyRank : Rank((self + ranks_ - distance_) % ranks_);
    const std::vector<Transfer> transfers = {
        Transfer::recv(incoming, source, tag_),
        Transfer::send(outgoing_[static_cast<std::size_t>(self)], (self + distance_) % ranks_,
                       tag_)};
    return comm.batch_send_recv(transfers);
  }
  std::string check(int rank) const override {
    const bool right = incoming_[static_cast<std::size_t>(rank)] == sent_to(rank);
    return right ? "" : "another message than the one that was sent";
  }
  std::string describe() const override {
    return fmt::format("messages {} ranks further, tag {}{}", distance_, tag_,
                       from_any_ ? ", from any rank" : "");
  }

 private:
  const Bytes& sent_to(int rank) const {
    return outgoing_[static_cast<std::size_t>((rank + ranks_ - distance_) % ranks_)];
  }

  int ranks_;
  int distance_;
  int tag_;
  bool from_any_;
  std::vector<Bytes> outgoing_;
  std::vector<Bytes> incoming_;
};

}  // namespace

std::unique_ptr<Scenario> Scenario::draw(Random& random, const ScenarioOptions& options) {
  const auto collective = static_cast<Collective>(random.below(kCollectiveCount));
  if (collective != Collective::point_to_point) {
    return std::make_unique<CollectiveScenario>(random, options, collective);
  }
  if (options.ranks > 1) return std::make_unique<MessageScenario>(random, options);
  return std::make_unique<CollectiveScenario>(random, options, Collective::barrier);
}

}  // namespace stretto::simulation
