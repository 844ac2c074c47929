// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/base/rank_vector.h"

namespace stretto::group {

// Who is lost and whether all are ready: one member's belief, or the decision of all.
struct Proposal {
  // Per member: which member first called it lost or left it out of its list; kTakesPart if none
  // did.
  RankVector<std::int32_t> lost_by;
  // Whether all members whose proposals have been united into this one said that they are ready.
  bool ready = true;

  static constexpr std::int32_t kTakesPart = -1;
  bool takes_part(Rank member) const { return lost_by[member] == kTakesPart; }
  std::vector<Rank> participants() const;
};

// Consensus of the surviving members of a group on who is lost, by flooding in rounds; decision
// 0010 says how it works and why it is right. Agreements follow one another. Each begins when this
// member calls begin() and ends with the same decision on all surviving members. This class is a
// state machine without network or clock. It is not thread safe.
//
// It relies on these guarantees: messages from one member arrive in order; none is lost while both
// ends live; none arrives after lose() has been called for its sender; lose() is never called for a
// member that lives and takes part.
class Agreement {
 public:
  struct Message {
    std::uint32_t number = 0;  // Number of the agreement, counted from 0.
    std::uint32_t round = 0;   // kDecided: the proposal is the decision.
    Proposal proposal;
  };
  static constexpr std::uint32_t kDecided = 0;

  Agreement(int size, Rank self);

  // Takes part in the next agreement. If this member already takes part in one, adds `left_out` to
  // its lost members and ignores `ready`: the first call's value holds.
  void begin(const std::vector<Rank>& left_out, bool ready);
  bool begun() const { return round_ > 0; }
  // A member has died, or will take no part any more.
  void lose(Rank member);
  void receive(Rank from, const Message& message);

  // The messages to send now, in this order, to all other members that can be reached, including
  // those that are left out.
  std::vector<Message> take_messages() { return std::exchange(messages_, {}); }
  // The decision of the agreement that has ended. Each decision is returned once.
  std::optional<Proposal> take_decision() { return std::exchange(decision_, std::nullopt); }
  bool decided() const { return decision_.has_value(); }
  // The number of the next agreement, or of the one under way: the count of decisions so far.
  std::uint32_t number() const { return number_; }
  // The member that has left this one out. This member then takes part in no agreement any more.
  std::optional<Rank> left_out_by() const;
  // The members that have not yet said anything in this round.
  std::vector<Rank> waiting_for() const;

 private:
  // What a member has said in a round. Its lost members have been united with our own proposal, so
  // two proposals with equally many lost members are equal.
  struct Word {
    std::uint32_t round = 0;
    std::size_t lost = 0;
    bool ready = true;
  };

  void unite(const Proposal& other);
  void send(std::uint32_t round);
  void advance();
  void decide(const Proposal& decision);
  bool has_said(Rank member) const;

  Rank self_;
  Proposal proposal_;
  std::uint32_t number_ = 0;
  std::uint32_t round_ = 0;
  RankVector<std::array<Word, 2>> words_;  // A member may be one round ahead.
  std::vector<Message> messages_;
  std::optional<Proposal> decision_;
};

}  // namespace stretto::group
