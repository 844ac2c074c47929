// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The last stages of going to sleep, which ThreadSanitizer cannot judge because it knows no fences:
// a model of Note [sleeping and doorbells] in ring_link.cc, run in every order in which its steps,
// and the moments at which stores reach memory, can follow each other. Stores of a thread wait in
// its buffer, in their order, while it goes on to load: the one thing that x86 does out of order,
// and the one that the protocol's fences are there for.

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>
#include <vector>

namespace stretto::transport {
namespace {

struct Protocol {
  bool notifier_fences = true;    // Between its store and its load.
  bool sleeper_commands = false;  // The sleeper's barrier is one on the notifier, too.
  bool sleeper_looks_again = true;
};

constexpr int kMessages = 2;
enum Word { work, flag, kWords };
enum class At { begin, fence, look, act, sleep, end };

struct Thread {
  At at = At::begin;
  int value = 0;                                  // Messages sent, or seen.
  std::vector<std::pair<Word, int>> buffer = {};  // Stores that are not in memory yet.
  auto operator<=>(const Thread&) const = default;
};

struct State {
  std::array<int, kWords> memory = {};
  bool doorbell = false;
  Thread notifier = {}, sleeper = {};
  auto operator<=>(const State&) const = default;

  int load(const Thread& thread, Word word) const {
    int value = memory[word];
    for (const auto& [stored, to] : thread.buffer) value = stored == word ? to : value;
    return value;
  }
  void drain(Thread& thread) {
    for (const auto& [word, value] : thread.buffer) memory[word] = value;
    thread.buffer.clear();
  }
};

// Messages one after the other: RingLink::write().
void notify(State& state, const Protocol& protocol) {
  Thread& self = state.notifier;
  switch (self.at) {
    case At::begin:
      self.buffer.emplace_back(work, ++self.value);
      self.at = At::fence;
      break;
    case At::fence:
      if (protocol.notifier_fences) state.drain(self);
      self.at = At::look;
      break;
    case At::look:
      self.at = state.load(self, flag) != 0 ? At::act : At::end;
      break;
    default: {  // The exchange that decides who rings.
      state.doorbell = state.memory[flag] != 0 || state.doorbell;
      state.memory[flag] = 0;
      self.at = At::end;
    }
  }
  if (self.at == At::end && self.value < kMessages) self.at = At::begin;
}

// Until all have been seen: Engine::sleep() with SleepFlag. False: it is asleep.
bool wait(State& state, const Protocol& protocol) {
  Thread& self = state.sleeper;
  switch (self.at) {
    case At::begin:
      self.buffer.emplace_back(flag, 1);
      self.at = At::fence;
      return true;
    case At::fence:
      state.drain(self);
      if (protocol.sleeper_commands) state.drain(state.notifier);
      self.at = protocol.sleeper_looks_again ? At::look : At::sleep;
      return true;
    case At::look: {
      const int seen = state.load(self, work);
      const bool is_new = seen > self.value;
      self.value = seen;
      if (is_new) self.buffer.emplace_back(flag, 0);
      self.at = !is_new ? At::sleep : seen == kMessages ? At::end : At::begin;
      return true;
    }
    default:  // Woken up, it lowers its flag and looks; with nothing new it sleeps again.
      if (!state.doorbell) return false;
      state.doorbell = false;
      self.buffer.emplace_back(flag, 0);
      self.value = state.load(self, work);
      self.at = self.value == kMessages ? At::end : At::begin;
      return true;
  }
}

// Whether there is an order in which the sleeper never wakes up for what has been sent.
class Search {
 public:
  explicit Search(const Protocol& protocol) : protocol_(protocol) {}
  bool loses_a_wake_up() { return loses_from(State()); }
  std::size_t states() const { return seen_.size(); }

 private:
  bool loses_from(const State& state) {
    if (!seen_.insert(state).second) return false;
    bool goes_on = false;
    bool loses = false;
    const auto follow = [&](const State& next) {
      goes_on = true;
      loses = loses_from(next) || loses;
    };
    for (Thread State::*const thread : {&State::notifier, &State::sleeper}) {
      if ((state.*thread).buffer.empty()) continue;
      State next = state;
      const auto [word, value] = (next.*thread).buffer.front();
      (next.*thread).buffer.erase((next.*thread).buffer.begin());
      next.memory[word] = value;
      follow(next);
    }
    if (State next = state; next.notifier.at != At::end) {
      notify(next, protocol_);
      follow(next);
    }
    if (State next = state; next.sleeper.at != At::end && wait(next, protocol_)) follow(next);
    return loses || (!goes_on && state.sleeper.at != At::end);
  }

  Protocol protocol_;
  std::set<State> seen_;
};

bool loses_a_wake_up(const Protocol& protocol) {
  Search search(protocol);
  const bool loses = search.loses_a_wake_up();
  EXPECT_GT(search.states(), 50u);
  return loses;
}

TEST(SleepModel, NoOrderOfStepsLosesAWakeUp) {
  EXPECT_FALSE(loses_a_wake_up({}));
  EXPECT_FALSE(loses_a_wake_up({.sleeper_commands = true}));
  EXPECT_FALSE(loses_a_wake_up({.notifier_fences = false, .sleeper_commands = true}));
}

TEST(SleepModel, EachPartOfTheProtocolIsNeeded) {
  EXPECT_TRUE(loses_a_wake_up({.notifier_fences = false}));
  EXPECT_TRUE(loses_a_wake_up({.sleeper_looks_again = false}));
  EXPECT_TRUE(loses_a_wake_up({.sleeper_commands = true, .sleeper_looks_again = false}));
}

}  // namespace
}  // namespace stretto::transport
