// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Ranks disagree about an operation, in every way, over all transports that a group can tell apart.
// Each rank must be told within two seconds, in a text that names both calls. There are too many
// combinations for every run, so some are drawn from a seed. STRETTO_DISAGREEMENT_CASES says how
// many are tried in each world; ./dev test --all tries all.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "stretto/base/error.h"
#include "stretto/base/operation.h"
#include "stretto/base/rank_vector.h"
#include "tests/contract/world_ranks.h"
#include "tests/support/seed.h"
#include "tests/support/thorough.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kHeartbeat(40);
// Within this time every rank is told. A sanitized program takes several times as long for all it
// does.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr seconds kTold(10);
constexpr std::size_t kCases = 48;
#else
constexpr seconds kTold(2);
constexpr std::size_t kCases = 128;
#endif
// A rank that has not been told by then never will be.
constexpr seconds kPatience(30);
constexpr seconds kTimeout(120);
// Cases that are tried at the same time, each in a group of its own.
constexpr std::size_t kBatch = 16;

// A call that some of the ranks make.
struct Spec {
  Collective collective = Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  bool integers = false;
  int root = 0;
  std::size_t count = 0;  // Of a share, where there are shares.
  std::string algorithm = {};
  bool uneven = false;  // Unequal shares; for an all_reduce, a list of two buffers.
};

// The state of one rank in one case.
struct RankCase {
  std::unique_ptr<Communicator> comm;
  std::vector<std::uint32_t> input;
  std::vector<std::uint32_t> output;
  Work work;
  std::string text;
  std::string failure;  // "Mismatch", or what has happened instead.
  Duration after{};     // From the first call of the batch until this rank knew.
};

template <class T>
Work call(Communicator& comm, const Spec& spec, RankCase& own) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto self = static_cast<std::size_t>(comm.rank());
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; spec.uneven && r < ranks; ++r) counts.push_back(spec.count + r);
  const std::size_t share = spec.uneven ? counts[self] : spec.count;
  std::size_t whole = spec.count * ranks;
  if (spec.uneven) whole += ranks * (ranks - 1) / 2;
  own.input.assign(whole + 1, 0);
  own.output.assign(whole + 1, 0);
  const auto in = [&](std::size_t n) {
    return std::span<const T>(reinterpret_cast<const T*>(own.input.data()), n);
  };
  const auto out = [&](std::size_t n) {
    return std::span<T>(reinterpret_cast<T*>(own.output.data()), n);
  };
  switch (spec.collective) {
    case Collective::all_reduce:
      if (spec.uneven) {
        const std::array list = {as_output(out(whole).first(1)), as_output(out(whole).subspan(1))};
        return comm.all_reduce_coalesced(list, {.op = spec.op});
      }
      return comm.all_reduce(in(whole), out(whole), {.op = spec.op, .algorithm = spec.algorithm});
    case Collective::reduce_scatter:
      return comm.reduce_scatter(in(whole), out(share),
                                 {.op = spec.op, .counts = counts, .algorithm = spec.algorithm});
    case Collective::all_gather:
      return comm.all_gather(in(share), out(whole),
                             {.counts = counts, .algorithm = spec.algorithm});
    case Collective::broadcast:
      return comm.broadcast(out(whole), {.root = spec.root, .algorithm = spec.algorithm});
    case Collective::reduce:
      return comm.reduce(in(whole), out(whole),
                         {.op = spec.op, .root = spec.root, .algorithm = spec.algorithm});
    case Collective::gather:
      return comm.gather(in(share), out(whole),
                         {.root = spec.root, .counts = counts, .algorithm = spec.algorithm});
    case Collective::scatter:
      return comm.scatter(in(whole), out(share),
                          {.root = spec.root, .counts = counts, .algorithm = spec.algorithm});
    case Collective::all_to_all:
      if (spec.uneven) {
        const std::vector<std::size_t> equal(ranks, spec.count);
        return comm.all_to_all(in(spec.count * ranks), out(spec.count * ranks),
                               {.send_counts = equal, .recv_counts = equal});
      }
      return comm.all_to_all(in(whole), out(whole), {.algorithm = spec.algorithm});
    case Collective::point_to_point: {
      // A ring: each rank sends to the next one.
      const int next = (comm.rank().value() + 1) % comm.size();
      const int before = (comm.rank().value() + comm.size() - 1) % comm.size();
      const std::array ring = {Transfer::send(in(spec.count), next),
                               Transfer::recv(out(spec.count), before)};
      return comm.batch_send_recv(ring);
    }
    default:
      return comm.barrier({.algorithm = spec.algorithm});
  }
}

struct CallsThatDiffer {
  std::string name;
  Spec others;
  Spec odd;
  int odd_rank = 0;
  bool leaves = false;  // Whether ranks whose part has ended well destroy the group at once.
};

bool has_list(Collective collective) {
  return collective != Collective::point_to_point && collective != Collective::barrier &&
         collective != Collective::broadcast && collective != Collective::reduce;
}

// Every call that differs from this one in one way.
std::vector<std::pair<std::string, Spec>> alternatives(const Spec& spec, int ranks) {
  std::vector<std::pair<std::string, Spec>> list;
  const auto add = [&](std::string what, const auto& change) {
    list.emplace_back(std::move(what), spec);
    change(list.back().second);
  };
  const bool is_message = spec.collective == Collective::point_to_point;
  // Messages and collectives do not wait for each other: if one rank calls a message and another a
  // collective, that is no disagreement.
  for (int other = 0; !is_message && other < kCollectiveCount; ++other) {
    const auto collective = static_cast<Collective>(other);
    if (collective == spec.collective || collective == Collective::point_to_point) continue;
    add(std::string(name(collective)), [&](Spec& s) { s.collective = collective; });
  }
  if (!is_message) {
    add("algorithm", [](Spec& s) {
      s.algorithm = s.collective == Collective::all_to_all ? "pairwise" : "direct";
    });
  }
  if (spec.collective == Collective::barrier) return list;
  add("dtype", [](Spec& s) { s.integers = true; });
  add("count", [](Spec& s) { ++s.count; });
  if (reduces(spec.collective)) add("op", [](Spec& s) { s.op = ReduceOp::max; });
  for (int root = 1; has_root(spec.collective) && root < ranks; ++root) {
    add("root" + std::to_string(root), [&](Spec& s) { s.root = root; });
  }
  if (has_list(spec.collective)) add("layout", [](Spec& s) { s.uneven = true; });
  return list;
}

// No bytes, a few, about as many as are sent at once, and a message that waits for its receive.
constexpr std::array<std::size_t, 4> kCounts = {0, 4, 2000, 40'000};

std::vector<CallsThatDiffer> all_cases(int ranks) {
  std::vector<CallsThatDiffer> cases;
  for (int a = 0; a < kCollectiveCount; ++a) {
    const auto collective = static_cast<Collective>(a);
    for (const std::size_t count : kCounts) {
      const Spec spec{.collective = collective, .count = count};
      for (const auto& [what, odd] : alternatives(spec, ranks)) {
        for (int rank = 0; rank < ranks; ++rank) {
          cases.push_back({.name = std::string(name(collective)) + " of " + std::to_string(count) +
                                   " against " + what + " on rank " + std::to_string(rank) +
                                   " of " + std::to_string(ranks),
                           .others = spec,
                           .odd = odd,
                           .odd_rank = rank});
          cases.push_back(cases.back());
          cases.back().name += ", who has ended leaves";
          cases.back().leaves = true;
        }
      }
    }
  }
  return cases;
}

// Waits until the operation has failed or, if this rank's part of it ended well, the group. It asks
// about the group by an operation that nobody can run, which is refused without asking other ranks.
void find_failure(RankCase& own, bool leaves) {
  const TimePoint begin = Clock::now();
  try {
    own.work.wait();
    if (leaves) {
      own.failure = "left";
      return;
    }
    while (Clock::now() - begin < kPatience) {
      try {
        own.comm->barrier({.algorithm = "no such algorithm"}).wait();
      } catch (const InvalidArgument&) {
        std::this_thread::sleep_for(milliseconds(5));
      }
    }
    own.failure = "nothing";
  } catch (const Mismatch& error) {
    own.failure = "Mismatch";
    own.text = error.what();
  } catch (const Error& error) {
    own.failure = name(error.status().code());
    own.text = error.what();
  }
}

void begin(Communicator& comm, const Spec& spec, RankCase& own) {
  own.work = spec.integers ? call<std::int32_t>(comm, spec, own) : call<float>(comm, spec, own);
}

// Runs a batch on one rank: begins all operations, then waits for their ends.
void run_batch(Communicator& world, std::span<const CallsThatDiffer> batch,
               std::vector<RankCase>& all) {
  std::vector<Rank> everybody;
  for (int r = 0; r < world.size(); ++r) everybody.push_back(r);
  for (RankCase& own : all) own.comm = world.new_group(everybody);
  // Otherwise some ranks would still be making a group when others have failed in it.
  world.barrier().wait();
  const TimePoint begun = Clock::now();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const bool odd = world.rank() == batch[i].odd_rank;
    try {
      begin(*all[i].comm, odd ? batch[i].odd : batch[i].others, all[i]);
    } catch (const Error& error) {
      all[i].work = Work(error.status());
    }
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    find_failure(all[i], batch[i].leaves);
    all[i].after = Clock::now() - begun;
    all[i].comm.reset();  // Like a program that throws.
  }
}

std::string spoken(const Spec& spec) {
  if (spec.collective == Collective::point_to_point) return "send/recv(";
  return std::string(name(spec.collective)) + "(";
}

void check(const CallsThatDiffer& tested, const RankCase& own, int rank) {
  const auto contains = [&](const std::string& part) {
    return own.text.find(part) != std::string::npos;
  };
  EXPECT_LT(own.after, kTold) << tested.name << ", rank " << rank;
  if (tested.leaves && own.failure == "left") return;
  const bool good = own.failure == "Mismatch" &&
                    contains("rank " + std::to_string(tested.odd_rank) + " called ") &&
                    contains(spoken(tested.others)) && contains(spoken(tested.odd)) &&
                    contains("First difference: ");
  EXPECT_TRUE(good) << tested.name << ", rank " << rank << ": " << own.failure << ": " << own.text;
}

std::size_t wanted_cases(std::size_t all) {
  const char* const wanted = std::getenv("STRETTO_DISAGREEMENT_CASES");
  if (wanted == nullptr) return is_thorough() ? all : std::min(all, kCases);
  if (std::string(wanted) == "all") return all;
  return std::min<std::size_t>(all, std::strtoull(wanted, nullptr, 10));
}

using WorldOfSize = std::tuple<transport::WorldKind, int>;
class DisagreementMatrix : public ::testing::TestWithParam<WorldOfSize> {};

TEST_P(DisagreementMatrix, EveryRankIsToldWithBothCalls) {
  const auto& [kind, size] = GetParam();
  std::vector<CallsThatDiffer> cases = all_cases(size);
  std::mt19937_64 random(draw_seed());
  std::ranges::shuffle(cases, random);
  cases.resize(wanted_cases(cases.size()));
  auto worlds = make_world_ranks(kind, size, kHeartbeat, kTimeout);
  for (std::size_t done = 0; done < cases.size(); done += kBatch) {
    const auto batch = std::span(cases).subspan(done, std::min(kBatch, cases.size() - done));
    RankVector<std::vector<RankCase>> of_ranks(size);
    for (auto& all : of_ranks) all.resize(batch.size());
    on_all(worlds, [&](Communicator& world) { run_batch(world, batch, of_ranks[world.rank()]); });
    for (std::size_t i = 0; i < batch.size(); ++i) {
      for (int r = 0; r < size; ++r) check(batch[i], of_ranks[r][i], r);
    }
    if (HasFailure()) return;
  }
}

// A root lays out its scatter in the windows of the ranks that are to read it, before it has seen
// their posts. If two ranks both believe that they are the root, they write the same slots at the
// same time. ThreadSanitizer reports this where both have the memory at one address; "shm" runs the
// same code at two. The race is harmless: both write plain bytes, each within one half of the
// staging, and that bound comes from each rank's own plan, not from what others say. Nobody reads
// that half any more, since a rank that enters an operation has ended the one before. Nobody reads
// what the two have written, since each rank first compares all posts, finds one that differs from
// its own, and fails the group, whose windows are never used again. If the slots were in the root's
// own window, each of n ranks could have only an nth of the half, and from 16 ranks on a scatter
// would need more syncs.
std::vector<WorldOfSize> worlds() {
  std::vector<WorldOfSize> worlds;
  for (const transport::WorldKind& kind : transport::world_kinds_for_groups()) {
#ifdef __SANITIZE_THREAD__
    if (kind.name == "loopback") continue;
#endif
    for (const int size : {2, 3, 5}) {
      if (size > 2 || !kind.is_mixed) worlds.emplace_back(kind, size);
    }
  }
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(, DisagreementMatrix, ::testing::ValuesIn(worlds()),
                         [](const auto& tested) {
                           return std::get<0>(tested.param).name + "_" +
                                  std::to_string(std::get<1>(tested.param)) + "_ranks";
                         });

}  // namespace
}  // namespace stretto::testing
