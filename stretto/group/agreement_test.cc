// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"

namespace stretto::group {
namespace {

// How the simulation breaks the algorithm, to see whether the checks notice.
enum class Mutant {
  none,
  compares_nothing,     // Each proposal counts as equal to the receiver's own.
  waits_for_one,        // The first word of a round counts for all members.
  keeps_decisions,      // A member tells nobody its decision.
  hears_the_lost,       // Decisions of lost members count, too.
  leaves_out_silently,  // A member that is left out does not say so.
};

// Simulates what shrink() does with agreements. Members agree on who is lost, set up a group of the
// others, which may fail, agree on whether it did, and so on. A seed determines all events: when
// members begin and with which lists, delays, deaths whose last messages reach only some members,
// and members that destroy their communicator as soon as they have the new one.
class Simulation {
 public:
  Simulation(std::uint64_t seed, Mutant mutant) : random_(seed), mutant_(mutant) {
    size_ = 2 + static_cast<int>(random_.below(6));
    for (int r = 0; r < size_; ++r) members_.emplace_back(Agreement(size_, r));
    const std::uint64_t one_of = 2 + random_.below(4);
    for (int link = 0; link < size_ * size_; ++link) {
      if (random_.below(one_of) == 0) slow_.emplace(link / size_, link % size_);
    }
    links_.assign(static_cast<std::size_t>(size_ * size_), 0);
    draw_lists();
    const auto deaths = random_.below(static_cast<std::uint64_t>(size_));
    for (int r = 0; r < size_; ++r) {
      // A member that is certainly left out need not come at all.
      const bool comes = deaths > 0 || !is_named(r) || random_.below(2) == 0;
      if (comes) at(random_.below(60), [this, r] { start(r); });
    }
    for (std::uint64_t i = 0; i < deaths; ++i) {
      const int dying = static_cast<int>(random_.below(static_cast<std::uint64_t>(size_)));
      if (random_.below(2) == 0) {
        at(random_.below(200), [this, dying] { kill(dying); });
      } else {
        member(dying).last_message = 1 + static_cast<int>(random_.below(4));
      }
    }
  }

  // Returns what is wrong in the end, or an empty text.
  std::string run() {
    for (int event = 0; !events_.empty(); ++event) {
      if (event > 100000) return "it does not end";
      auto first = events_.extract(events_.begin());
      now_ = first.key().first;
      first.mapped()();
    }
    return failure();
  }

 private:
  struct Member {
    explicit Member(Agreement machine) : agreement(std::move(machine)) {}
    Agreement agreement;
    std::vector<Rank> list;
    bool started = false;
    bool dead = false;
    int sent = 0;
    int last_message = 0;  // Number of the message with which it dies; 0: none.
    std::optional<std::vector<Rank>> candidate;
    std::optional<std::vector<Rank>> result;
    std::vector<std::pair<bool, std::vector<Rank>>> decisions;
  };
  struct InFlight {
    std::uint64_t at;
    std::uint64_t id;
  };

  Member& member(Rank rank) { return members_[std::size_t(rank)]; }

  std::uint64_t at(std::uint64_t delay, std::function<void()> event) {
    events_.emplace(std::pair(now_ + delay, ++next_id_), std::move(event));
    return next_id_;
  }

  // Some lists name living members, but only members of the lower half name members of the upper.
  // If members left each other out, they would make two groups, as they should.
  void draw_lists() {
    if (random_.below(3) != 0) return;
    for (int named = size_ / 2 + 1; named < size_; ++named) {
      if (random_.below(2) == 0) continue;
      for (int r = 0; r <= size_ / 2; ++r) {
        if (random_.below(2) == 0) members_[r].list.emplace_back(named);
      }
    }
  }

  bool is_named(Rank rank) const {
    return std::ranges::any_of(
        members_, [&](const Member& other) { return std::ranges::count(other.list, rank) > 0; });
  }

  // Events on the link from one member to another keep their order.
  void deliver(Rank from, Rank to, std::function<void()> event) {
    std::uint64_t& last =
        links_[std::size_t(from) * static_cast<std::size_t>(size_) + std::size_t(to)];
    last = std::max(last, now_ + 1 + random_.below(slow_.contains({from, to}) ? 500 : 20));
    const std::uint64_t id = at(last - now_, [this, to, event = std::move(event)] {
      if (!member(to).dead) event();
    });
    in_flight_[{from, to}].push_back({last, id});
  }

  void start(Rank rank) {
    Member& self = member(rank);
    if (self.dead) return;
    self.started = true;
    self.agreement.begin(self.list, false);
    resume(rank);
  }

  void resume(Rank rank) {
    Member& self = member(rank);
    for (const Agreement::Message& message : self.agreement.take_messages()) {
      if (!self.dead) send(rank, message);
    }
    if (self.dead) return;
    const std::optional<Proposal> decision = self.agreement.take_decision();
    if (!decision) return;
    self.decisions.emplace_back(decision->ready, decision->participants());
    if (self.candidate == decision->participants() && decision->ready) {
      self.result = self.candidate;
      if (random_.below(2) == 0) tell_gone(rank);
      return;
    }
    self.candidate = decision->participants();
    at(random_.below(40), [this, rank] { set_up(rank); });
  }

  void set_up(Rank rank) {
    Member& self = member(rank);
    if (self.dead) return;
    const bool fails = std::ranges::any_of(
        *self.candidate, [&](Rank other) { return member(other).dead && random_.below(2) == 0; });
    self.agreement.begin(self.list, !fails);
    resume(rank);
  }

  void send(Rank from, const Agreement::Message& message) {
    const bool silent = mutant_ == Mutant::leaves_out_silently;
    if (mutant_ == Mutant::keeps_decisions && message.round == Agreement::kDecided) return;
    if (silent && !message.proposal.takes_part(from)) return;
    if (message.round != Agreement::kDecided) proposals_[from] = message.proposal;
    for (int to = 0; to < size_; ++to) {
      if (from == Rank(to)) continue;
      deliver(from, to, [this, from, to, message] { receive(from, to, message); });
    }
    if (++member(from).sent == member(from).last_message) kill(from);
  }

  void receive(Rank from, Rank to, Agreement::Message message) {
    Agreement& agreement = member(to).agreement;
    const bool decided = message.round == Agreement::kDecided;
    if (mutant_ == Mutant::compares_nothing && !decided && agreement.begun()) {
      message.proposal = proposals_[to];
    }
    agreement.receive(from, message);
    if (mutant_ == Mutant::waits_for_one && !decided) {
      for (int other = 0; other < size_; ++other) agreement.receive(other, message);
    }
    if (mutant_ == Mutant::hears_the_lost && decided && member(from).dead) {
      for (int other = 0; other < size_; ++other) {
        if (Rank(other) != Rank(to)) agreement.receive(other, message);
      }
    }
    resume(to);
  }

  // Only the first of its messages under way arrive at each other member, then its death does.
  void kill(Rank rank) {
    if (member(rank).dead) return;
    member(rank).dead = true;
    for (int to = 0; to < size_; ++to) {
      std::vector<InFlight>& flying = in_flight_[{rank, to}];
      std::erase_if(flying, [&](const InFlight& one) { return one.at < now_; });
      const std::size_t arrive = random_.below(flying.size() + 1);
      for (std::size_t i = arrive; i < flying.size(); ++i) {
        events_.erase({flying[i].at, flying[i].id});
      }
    }
    tell_gone(rank);
  }

  void tell_gone(Rank rank) {
    for (int to = 0; to < size_; ++to) {
      if (rank == Rank(to)) continue;
      deliver(rank, to, [this, rank, to] {
        member(to).agreement.lose(rank);
        resume(to);
      });
    }
  }

  std::string failure() {
    const Member* first = nullptr;
    for (int r = 0; r < size_; ++r) {
      const Member& self = member(r);
      if (self.dead) continue;
      const bool named = is_named(r);
      if (self.agreement.left_out_by()) {
        if (!named) return fmt::format("member {} is left out, though nobody named it", r);
        continue;
      }
      if (!self.result) return fmt::format("member {} waits for ever", r);
      if (std::ranges::count(*self.result, Rank(r)) == 0) return "a member is not in its own group";
      if (first == nullptr) first = &self;
      if (self.result != first->result) return "members have different groups";
      if (self.decisions != first->decisions) return "members decided differently";
    }
    for (int r = 0; first != nullptr && r < size_; ++r) {
      const bool is_in = std::ranges::count(*first->result, Rank(r)) > 0;
      if (is_in && member(r).agreement.left_out_by()) return "who is in the group was left out";
      if (is_in || member(r).dead || is_named(r)) continue;
      return fmt::format("member {} lives and is not in the group", r);
    }
    return {};
  }

  Random random_;
  Mutant mutant_;
  int size_ = 0;
  std::uint64_t now_ = 0;
  std::uint64_t next_id_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::function<void()>> events_;
  RankVector<Member> members_;
  std::set<std::pair<Rank, Rank>> slow_;
  std::vector<std::uint64_t> links_;  // When the last delivery of a link is due.
  std::map<std::pair<Rank, Rank>, std::vector<InFlight>> in_flight_;
  std::map<Rank, Proposal> proposals_;
};

constexpr std::uint64_t kSeeds = 20000;

std::string failure_of(std::uint64_t seed, Mutant mutant = Mutant::none) {
  return Simulation(seed, mutant).run();
}

TEST(AgreementTest, SurvivorsAgreeWhateverDiesMeanwhile) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::string failure = failure_of(seed);
    ASSERT_TRUE(failure.empty()) << failure << ", seed " << seed;
  }
}

// Shows that the checks would notice a wrong algorithm.
TEST(AgreementTest, EachRuleIsNeeded) {
  const std::map<std::string, Mutant> mutants = {
      {"compares nothing", Mutant::compares_nothing},
      {"waits for one", Mutant::waits_for_one},
      {"keeps decisions to itself", Mutant::keeps_decisions},
      {"listens to the lost", Mutant::hears_the_lost},
      {"leaves out silently", Mutant::leaves_out_silently}};
  for (const auto& [name, mutant] : mutants) {
    std::uint64_t seed = 0;
    while (seed < kSeeds && failure_of(seed, mutant).empty()) ++seed;
    EXPECT_LT(seed, kSeeds) << "nobody notices an algorithm that " << name;
  }
}

TEST(AgreementTest, ItTakesOneRoundIfAllKnowTheSame) {
  Agreement zero(3, 0);
  Agreement one(3, 1);
  zero.lose(2);
  one.lose(2);
  zero.begin({}, true);
  one.begin({}, true);
  for (const auto& message : one.take_messages()) zero.receive(1, message);
  ASSERT_TRUE(zero.decided());
  EXPECT_EQ(zero.take_decision()->participants(), (std::vector<Rank>{0, 1}));
  EXPECT_EQ(zero.number(), 1u);
}

TEST(AgreementTest, ItSaysWhoIsWaitedForAndWhoHasLeftAMemberOut) {
  Agreement zero(3, 0);
  zero.begin({2}, true);
  EXPECT_EQ(zero.waiting_for(), std::vector<Rank>{1});
  Agreement two(3, 2);
  for (const auto& message : zero.take_messages()) two.receive(0, message);
  EXPECT_EQ(two.left_out_by(), Rank(0));
  two.begin({}, true);
  EXPECT_FALSE(two.decided());
}

}  // namespace
}  // namespace stretto::group
