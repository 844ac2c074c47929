// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/scenario.h"

#include <fmt/format.h>

#include "stretto/base/rank_vector.h"
#include "tests/support/algorithms_for.h"
#include "tests/support/problem.h"

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

// If the algorithm has an order of its own, the oracle takes inputs for which any order is right.
testing::Problem draw_problem(Random& random, const ScenarioOptions& options,
                              Collective collective) {
  const auto ranks = static_cast<std::uint64_t>(options.ranks);
  testing::Problem problem{.collective = collective,
                           .ranks = options.ranks,
                           .root = static_cast<int>(random.below(ranks)),
                           .in_place = random.below(3) == 0};
  const bool uneven = has_shares(collective) && random.below(3) == 0;
  auto algorithms = testing::algorithms_for(collective, schedule::Access::messages);
  std::erase_if(algorithms, [&](const auto* row) { return uneven && row->equal_chunks; });
  if (!algorithms.empty() && random.below(4) > 0) {
    problem.algorithm = algorithms[random.below(algorithms.size())]->name;
  }
  const auto draws = [&](DType dtype) {
    if (!reduces(collective)) return true;
    const bool is_integer =
        !is_floating_point(dtype) && !is_complex(dtype) && dtype != DType::boolean;
    return supports(problem.op, dtype) && (is_integer || !options.sensitive);
  };
  do {
    problem.dtype = static_cast<DType>(random.below(kDTypeCount));
    problem.op =
        options.sensitive ? ReduceOp::sum : static_cast<ReduceOp>(random.below(kReduceOpCount));
  } while (!draws(problem.dtype));
  const std::size_t count = draw_count(random, options, size_bytes(problem.dtype));
  if (!has_shares(collective)) {
    problem.count = collective == Collective::barrier ? 0 : count;
    return problem;
  }
  problem = testing::with_equal_shares(problem, count);
  for (std::size_t& share : problem.shares) share = uneven ? random.below(2 * count + 1) : count;
  return problem;
}

// A collective whose result the oracle computes from all inputs.
class CollectiveScenario final : public Scenario {
 public:
  explicit CollectiveScenario(const testing::Problem& problem)
      : oracle_(problem), trials_(static_cast<std::size_t>(problem.ranks)) {}

  Work begin(Communicator& comm) override {
    auto& trial = trials_[comm.rank()];
    trial = std::make_unique<testing::Trial>(comm, oracle_);
    return trial->start();
  }
  std::string check(int rank) const override { return trials_[rank]->failure(); }
  std::string describe() const override { return testing::describe(oracle_.problem()); }

 private:
  testing::Oracle oracle_;
  RankVector<std::unique_ptr<testing::Trial>> trials_;
};

// Every rank sends one message and receives one.
class MessageScenario final : public Scenario {
 public:
  MessageScenario(Random& random, const ScenarioOptions& options)
      : ranks_(options.ranks),
        distance_(1 + static_cast<int>(random.below(static_cast<std::uint64_t>(ranks_ - 1)))),
        tag_(static_cast<int>(random.below(1u << 30))),
        from_any_(random.below(4) == 0) {
    for (int r = 0; r < ranks_; ++r) {
      Bytes& bytes = outgoing_.emplace_back(draw_count(random, options, 1));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    }
    incoming_.resize(outgoing_.size());
  }

  Work begin(Communicator& comm) override {
    const int self = comm.rank().value();
    Bytes& incoming = incoming_[self];
    incoming.assign(sent_to(self).size(), kUntouched);
    const Rank source = from_any_ ? kAnyRank : Rank((self + ranks_ - distance_) % ranks_);
    const std::vector<Transfer> transfers = {
        Transfer::recv(incoming, source, tag_),
        Transfer::send(outgoing_[self], (self + distance_) % ranks_, tag_)};
    return comm.batch_send_recv(transfers);
  }
  std::string check(int rank) const override {
    const bool right = incoming_[rank] == sent_to(rank);
    return right ? "" : "another message than the one that was sent";
  }
  std::string describe() const override {
    return fmt::format("messages {} ranks further, tag {}{}", distance_, tag_,
                       from_any_ ? ", from any rank" : "");
  }

 private:
  const Bytes& sent_to(int rank) const { return outgoing_[(rank + ranks_ - distance_) % ranks_]; }

  int ranks_;
  int distance_;
  int tag_;
  bool from_any_;
  RankVector<Bytes> outgoing_;
  RankVector<Bytes> incoming_;
};

}  // namespace

std::unique_ptr<Scenario> Scenario::draw(Random& random, const ScenarioOptions& options) {
  const auto collective = static_cast<Collective>(random.below(kCollectiveCount));
  if (collective != Collective::point_to_point) {
    return std::make_unique<CollectiveScenario>(draw_problem(random, options, collective));
  }
  if (options.ranks > 1) return std::make_unique<MessageScenario>(random, options);
  return std::make_unique<CollectiveScenario>(draw_problem(random, options, Collective::barrier));
}

}  // namespace stretto::simulation
