// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/agreement.h"

#include <algorithm>

namespace stretto::group {
namespace {

std::size_t lost_count(const Proposal& proposal) {
  return proposal.lost_by.size() -
         static_cast<std::size_t>(std::ranges::count(proposal.lost_by, Proposal::kTakesPart));
}

}  // namespace

std::vector<Rank> Proposal::participants() const {
  std::vector<Rank> ranks;
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(lost_by.size()); ++r) {
    if (takes_part(r)) ranks.emplace_back(r);
  }
  return ranks;
}

Agreement::Agreement(int size, Rank self)
    : self_(self),
      proposal_{.lost_by = RankVector<std::int32_t>(size, Proposal::kTakesPart)},
      words_(size) {}

std::optional<Rank> Agreement::left_out_by() const {
  if (proposal_.takes_part(self_)) return std::nullopt;
  return proposal_.lost_by[self_];
}

void Agreement::begin(const std::vector<Rank>& left_out, bool ready) {
  for (const Rank member : left_out) lose(member);
  if (left_out_by() || begun()) return;
  proposal_.ready = proposal_.ready && ready;
  send(round_ = 1);
  advance();
}

void Agreement::lose(Rank member) {
  std::int32_t& lost_by = proposal_.lost_by[member];
  if (lost_by != Proposal::kTakesPart) return;
  lost_by = self_.value();
  advance();
}

void Agreement::unite(const Proposal& other) {
  for (std::size_t m = 0; m < other.lost_by.size(); ++m) {
    if (proposal_.lost_by[m] == Proposal::kTakesPart) proposal_.lost_by[m] = other.lost_by[m];
  }
  proposal_.ready = proposal_.ready && other.ready;
}

void Agreement::send(std::uint32_t round) { messages_.push_back({number_, round, proposal_}); }

void Agreement::receive(Rank from, const Message& message) {
  // Ignores a member that is lost here: other members may already count on this rank not having
  // heard it.
  if (!proposal_.takes_part(from) || left_out_by() || message.number != number_) return;
  if (!message.proposal.takes_part(self_)) {
    unite(message.proposal);
    // The member that has left this one out may die before it tells the others, which would then
    // wait for this one.
    return send(std::max(round_, 1u));
  }
  if (message.round == kDecided) {
    // No member can decide before it has heard all that take part, so this one has begun.
    if (begun()) decide(message.proposal);
    return;
  }
  unite(message.proposal);
  words_[from][message.round % 2] = {message.round, lost_count(message.proposal),
                                     message.proposal.ready};
  advance();
}

bool Agreement::has_said(Rank member) const {
  return member == self_ || words_[member][round_ % 2].round == round_;
}

std::vector<Rank> Agreement::waiting_for() const {
  std::vector<Rank> ranks = proposal_.participants();
  std::erase_if(ranks, [&](Rank member) { return has_said(member); });
  return ranks;
}

void Agreement::advance() {
  while (begun() && !left_out_by()) {
    const std::vector<Rank> members = proposal_.participants();
    if (!std::ranges::all_of(members, [&](Rank member) { return has_said(member); })) return;
    const std::size_t lost = lost_count(proposal_);
    const bool all_equal = std::ranges::all_of(members, [&](Rank member) {
      const Word& word = words_[member][round_ % 2];
      return member == self_ || (word.lost == lost && word.ready == proposal_.ready);
    });
    if (all_equal) return decide(Proposal(proposal_));
    send(++round_);
  }
}

void Agreement::decide(const Proposal& decision) {
  unite(decision);  // Lost members that the decision does not name stay for the next agreement.
  messages_.push_back({number_, kDecided, decision});
  decision_ = decision;
  ++number_;
  round_ = 0;
  proposal_.ready = true;
  std::ranges::fill(words_, std::array<Word, 2>());
}

}  // namespace stretto::group
