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

// What one member of a group believes, and what all decide in the end.
struct Proposal {
  // Per member: the member that first said that it is lost, or left it out of its list; kTakesPart
  // where nobody has.
  RankVector<std::int32_t> lost_by;
  // Whether everybody whose proposal is in this one has said that it is ready.
  bool ready = true;

  static constexpr std::int32_t kTakesPart = -1;
  bool takes_part(Rank member) const { return lost_by[member] == kTakesPart; }
  std::vector<Rank> participants() const;
};

// Consensus of the surviving members of a group on who is lost, by flooding in rounds; decision
// 0010 says how it works and why it is right. One agreement follows the other: each begins when
// this member calls begin(), and ends with the same decision on all members that survive. A state
// machine: it knows no network and no clock. Not thread safe.
//
// It relies on three things. Messages from one member arrive in their order, none is lost while
// both ends live, and none arrives after lose() has been called for its sender; a member that lives
// and takes part is never reported to lose().
class Agreement {
 public:
  struct Message {
    std::uint32_t number = 0;  // Of the agreement, counted from 0.
    std::uint32_t round = 0;   // kDecided: the proposal is the decision.
    Proposal proposal;
  };
  static constexpr std::uint32_t kDecided = 0;

  Agreement(int size, Rank self);

  // Takes part in the next agreement, or adds to the lost of the one that it takes part in already;
  // `ready` is then what was said first.
  void begin(const std::vector<Rank>& left_out, bool ready);
  bool begun() const { return round_ > 0; }
  // A member has died, or will take no part any more.
  void lose(Rank member);
  void receive(Rank from, const Message& message);

  // What is to be sent now to all other members that can be reached, those that are left out
  // included, in this order.
  std::vector<Message> take_messages() { return std::exchange(messages_, {}); }
  // The decision of the agreement that has ended, once.
  std::optional<Proposal> take_decision() { return std::exchange(decision_, std::nullopt); }
  bool decided() const { return decision_.has_value(); }
  // Of the agreement that take_decision() has told of last, or of the one under way before that.
  std::uint32_t number() const { return number_; }
  // The member that has left this one out. It takes no part any more.
  std::optional<Rank> left_out_by() const;
  // The members whose word is missing in this round.
  std::vector<Rank> waiting_for() const;

 private:
  // What a member has said in its round. Everything that it calls lost has been united with our
  // own proposal, so two are equal if they have as many lost.
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
