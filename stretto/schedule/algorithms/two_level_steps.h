// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/chunk_owners.h"
#include "stretto/schedule/host_layout.h"

// The part that all two-level algorithms share, whether the ranks of a host exchange messages or
// have mapped each other's memory.
namespace stretto::schedule {

// Says which ranks handle and own a chunk. On every host one rank handles the chunk. Either one of
// these handlers owns the chunk, or all of them do. An owner computes the whole result.
class ChunkAssignment {
 public:
  // Makes chunk_count_for() chunks. owner_hosts() gives each chunk to a host, whose ranks own
  // consecutive blocks of chunks.
  static ChunkAssignment in_blocks(const Shape& shape) {
    ChunkAssignment assignment(shape, /*by_rank=*/false);
    const HostLayout& layout = assignment.layout_;
    const int chunk_count = chunk_count_for(shape.rank_count, layout.host_count());
    const std::vector<int> hosts = owner_hosts(subtrees_by_host(layout), chunk_count);
    for (int c = 0; c < chunk_count; ++c) {
      const auto& members = layout.members(hosts[static_cast<std::size_t>(c)]);
      assignment.owners_.push_back(
          members[static_cast<std::size_t>(c) * members.size() / chunk_count]);
    }
    return assignment;
  }

  // Rank r owns chunk r.
  static ChunkAssignment by_rank(const Shape& shape) {
    ChunkAssignment assignment(shape, /*by_rank=*/true);
    for (int c = 0; c < shape.rank_count; ++c) assignment.owners_.emplace_back(c);
    return assignment;
  }

  // Every handler owns the chunks that it handles. There are as many chunks as the largest host has
  // ranks.
  static ChunkAssignment on_every_host(const Shape& shape) {
    ChunkAssignment assignment(shape, /*by_rank=*/false);
    for (int host = 0; host < assignment.layout_.host_count(); ++host) {
      const auto ranks = static_cast<int>(assignment.layout_.members(host).size());
      assignment.everywhere_ = std::max(assignment.everywhere_, ranks);
    }
    return assignment;
  }

  const HostLayout& layout() const { return layout_; }
  int chunk_count() const { return everywhere_ + static_cast<int>(owners_.size()); }
  bool has_one_owner() const { return everywhere_ == 0; }  // Then owner() is the owner of a chunk.
  Rank owner(int chunk) const { return owners_[static_cast<std::size_t>(chunk)]; }
  bool is_owned_on(int host, int chunk) const {
    return !has_one_owner() || host == layout_.host_of(owner(chunk));
  }
  bool is_owned_elsewhere(int host, int chunk) const {
    return has_one_owner() ? !is_owned_on(host, chunk) : layout_.host_count() > 1;
  }
  Rank handler(int host, int chunk) const {
    if (has_one_owner() && is_owned_on(host, chunk)) return owner(chunk);
    const auto& members = layout_.members(host);
    const auto place = static_cast<std::size_t>(chunk);
    const auto count = static_cast<std::size_t>(chunk_count());
    return members[by_rank_ ? place % members.size() : place * members.size() / count];
  }

 private:
  ChunkAssignment(const Shape& shape, bool by_rank) : layout_(shape), by_rank_(by_rank) {}

  HostLayout layout_;
  bool by_rank_;
  std::vector<Rank> owners_;  // Per chunk, if each has one owner; else empty.
  int everywhere_ = 0;        // Number of chunks that have an owner on every host: all, or 0.
};

// Adds the steps of one rank. The steps between hosts are the same for all two-level algorithms.
// Derived classes say how the ranks of one host reach each other's chunks.
class TwoLevel {
 public:
  virtual ~TwoLevel() = default;
  TwoLevel(ScheduleBuilder& schedule, const Shape& shape, const ChunkAssignment& assignment)
      : schedule_(schedule),
        assignment_(assignment),
        self_(shape.rank),
        layout_(assignment.layout()),
        host_(layout_.host_of(shape.rank)),
        members_(layout_.members(host_)),
        position_(layout_.position_of(shape.rank)),
        subtrees_(subtrees_by_host(layout_)),
        alone_(shape.rank_count),
        owned_(static_cast<std::size_t>(layout_.host_count())),
        handled_(members_.size()),
        inputs_(static_cast<std::size_t>(assignment.chunk_count())),
        arrived_(inputs_.size()) {
    for (const auto& subtrees : subtrees_) {
      for (const Subtree& subtree : subtrees) {
        alone_[subtree.begin] = subtree.single();
      }
    }
    for (int c = 0; c < assignment.chunk_count(); ++c) {
      if (assignment.has_one_owner()) {
        owned_[static_cast<std::size_t>(layout_.host_of(assignment.owner(c)))].push_back(c);
      } else {
        for (auto& owned : owned_) owned.push_back(c);
      }
      const int handler = layout_.position_of(assignment.handler(host_, c));
      handled_[static_cast<std::size_t>(handler)].push_back(c);
    }
  }

  // Reduces every chunk into the output of its owners.
  void reduce_to_owners() {
    collect_inputs();
    reduce_subtrees();
    exchange_subtrees();
    for (const int c : own_handled()) {
      if (!is_owned_here(c)) continue;
      schedule_.reduce(operands(c, 0, layout_.rank_count()), result_places(c)).takes().completes();
    }
  }

  // Copies the chunks that owners hold in `source` to the output of every rank.
  void spread_from_owners(Buffer source) {
    spread_to_handlers(source);
    spread_inside(source);
  }

 protected:
  // Brings the inputs of this host's ranks to the handlers' inputs_. needs_input() leaves out an
  // input that its handler could combine with no other one: that rank sends its input directly to
  // the owner.
  virtual void collect_inputs() = 0;
  // Returns where an owner puts the whole result of chunk `c`.
  virtual std::vector<Place> result_places(int c) = 0;
  // Copies the chunks of the handlers to all ranks of the host. A handler has a chunk in its
  // output, or in `source` if it owns the chunk.
  virtual void spread_inside(Buffer source) = 0;

  // Whether the rank that handles chunk `c` on this host owns it.
  bool is_owned_here(int c) const { return assignment_.is_owned_on(host_, c); }
  // Whether the handler of chunk `c` on this host needs the input of `from`, another rank of this
  // host.
  bool needs_input(int c, Rank from) const { return is_owned_here(c) || !is_alone(from); }
  void add_input(int c, Rank from, Place place) {
    auto& inputs = inputs_[static_cast<std::size_t>(c)];
    inputs.resize(members_.size());
    inputs[static_cast<std::size_t>(layout_.position_of(from))] = place;
  }
  Place own(Slot slot) const { return {self_, slot}; }
  // The slot from which a handler passes chunk `c` on inside its host.
  Slot whole(int c, Buffer source) const {
    return is_owned_here(c) ? Slot{source, c, c} : output(c);
  }
  std::size_t member_count() const { return members_.size(); }
  Rank after(std::size_t distance) const {
    return members_[(static_cast<std::size_t>(position_) + distance) % members_.size()];
  }
  Rank before(std::size_t distance) const { return after(members_.size() - distance); }
  int host_after(int distance) const { return (host_ + distance) % layout_.host_count(); }
  int host_before(int distance) const { return host_after(layout_.host_count() - distance); }

  const std::vector<int>& handled_by(Rank member) const {
    return handled_[static_cast<std::size_t>(layout_.position_of(member))];
  }
  const std::vector<int>& own_handled() const { return handled_by(self_); }
  const std::vector<int>& owned_on(int host) const {
    return owned_[static_cast<std::size_t>(host)];
  }
  const std::vector<Subtree>& subtrees_on(int host) const {
    return subtrees_[static_cast<std::size_t>(host)];
  }
  bool is_alone(Rank rank) const { return alone_[rank]; }

 private:
  void reduce_subtrees();
  void exchange_subtrees();
  void send_subtrees(int c, int to_host);
  void receive_subtrees(int c, int from_host);
  std::vector<Place> operands(int c, int begin, int end);
  Place combined(int c, const std::vector<Place>& values);
  void spread_to_handlers(Buffer source);
  // Where the sum of one of this host's subtrees lies.
  Place& sum_of(int c, std::size_t subtree) {
    const auto first = static_cast<std::size_t>(subtrees_on(host_)[subtree].begin);
    return arrived_[static_cast<std::size_t>(c)][is_owned_here(c) ? first : subtree];
  }

 protected:
  ScheduleBuilder& schedule_;
  const ChunkAssignment& assignment_;
  Rank self_;

 private:
  const HostLayout& layout_;
  int host_;
  const std::vector<Rank>& members_;            // Of this host.
  int position_;                                // Of this rank in members_.
  std::vector<std::vector<Subtree>> subtrees_;  // Per host.
  RankVector<bool> alone_;                      // Per rank, whether its subtree has no other rank.
  std::vector<std::vector<int>> owned_;         // Per host, chunks with an owner there.
  std::vector<std::vector<int>> handled_;       // Per member of this host, chunks that it handles.
  std::vector<std::vector<Place>> inputs_;      // Per chunk, by the position of the member.
  // For a chunk that this rank owns, indexed by the first rank of a subtree: the values received
  // from other hosts and, if other ranks own the chunk as well, the sums of this host's subtrees.
  // For a chunk that this rank only handles, indexed by the number of the subtree: the sums of this
  // host's subtrees. Most handled chunks are not owned, so the second index saves memory.
  std::vector<std::vector<Place>> arrived_;
};

template <class Inside>
void two_level_all_reduce_by(ScheduleBuilder& schedule, const Shape& shape,
                             const ChunkAssignment& assignment) {
  schedule.cut_into(assignment.chunk_count());
  Inside steps(schedule, shape, assignment);
  steps.reduce_to_owners();
  steps.spread_from_owners(Buffer::output);
}

template <class Inside>
void two_level_reduce_scatter_by(ScheduleBuilder& schedule, const Shape& shape) {
  Inside(schedule, shape, ChunkAssignment::by_rank(shape)).reduce_to_owners();
}

template <class Inside>
void two_level_all_gather_by(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  Inside(schedule, shape, ChunkAssignment::by_rank(shape)).spread_from_owners(Buffer::input);
}

}  // namespace stretto::schedule
