// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/two_level.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"
#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {
namespace {

// Who deals with which chunk. On every host one rank handles it, and one of those owns it: there
// its result becomes whole.
class Deal {
 public:
  // As many chunks as there are ranks, or a little more; owners take turns by host, so that all
  // hosts send and receive equally much, and handlers by blocks.
  static Deal in_blocks(const HostLayout& layout, int rank_count) {
    const int hosts = layout.host_count();
    const int chunk_count = (rank_count + hosts - 1) / hosts * hosts;
    Deal deal(layout, /*by_rank=*/false);
    for (int c = 0; c < chunk_count; ++c) {
      const auto& members = layout.members(c % hosts);
      deal.owners_.push_back(members[static_cast<std::size_t>(c) * members.size() / chunk_count]);
    }
    return deal;
  }

  // Rank r owns chunk r.
  static Deal by_rank(const HostLayout& layout, int rank_count) {
    Deal deal(layout, /*by_rank=*/true);
    for (int c = 0; c < rank_count; ++c) deal.owners_.emplace_back(c);
    return deal;
  }

  int chunk_count() const { return static_cast<int>(owners_.size()); }
  Rank owner(int chunk) const { return owners_[static_cast<std::size_t>(chunk)]; }
  int owner_host(int chunk) const { return layout_.host_of(owner(chunk)); }
  Rank handler(int host, int chunk) const {
    if (host == owner_host(chunk)) return owner(chunk);
    const auto& members = layout_.members(host);
    const auto place = static_cast<std::size_t>(chunk);
    return members[by_rank_ ? place % members.size() : place * members.size() / owners_.size()];
  }

 private:
  Deal(const HostLayout& layout, bool by_rank) : layout_(layout), by_rank_(by_rank) {}

  const HostLayout& layout_;
  bool by_rank_;
  std::vector<Rank> owners_;
};

// A subtree of the canonical tree that lies on one host, and is no part of a larger one that does.
struct Group {
  int begin = 0;
  int end = 0;
  bool single() const { return end - begin == 1; }
};

// The steps of one rank.
class TwoLevel {
 public:
  TwoLevel(ScheduleBuilder& schedule, const Shape& shape, const HostLayout& layout,
           const Deal& deal)
      : schedule_(schedule),
        layout_(layout),
        deal_(deal),
        self_(shape.rank),
        host_(layout.host_of(shape.rank)),
        members_(layout.members(host_)),
        position_(layout.position_of(shape.rank)),
        groups_(static_cast<std::size_t>(layout.host_count())),
        alone_(static_cast<std::size_t>(shape.rank_count)),
        owned_(static_cast<std::size_t>(layout.host_count())),
        handled_(members_.size()),
        inputs_(static_cast<std::size_t>(deal.chunk_count())),
        arrived_(inputs_.size()) {
    find_groups(0, shape.rank_count);
    for (int c = 0; c < deal.chunk_count(); ++c) {
      owned_[static_cast<std::size_t>(deal.owner_host(c))].push_back(c);
      const int handler = layout.position_of(deal.handler(host_, c));
      handled_[static_cast<std::size_t>(handler)].push_back(c);
    }
  }

  // Owned chunks become whole in the output of their owners.
  void reduce_to_owners(int rank_count) {
    collect_inputs();
    reduce_groups();
    exchange_groups();
    for (const int c : own_handled()) {
      if (deal_.owner(c) != self_) continue;
      schedule_.reduce(operands(c, 0, rank_count), {output(c)}).completes();
    }
  }

  // What owners have in their output, or in their input, goes to everybody's output.
  void spread_from_owners(Buffer source) {
    spread_to_handlers(source);
    for (std::size_t distance = 1; distance < members_.size(); ++distance) {
      for (const int c : own_handled()) {
        schedule_.send(deal_.owner(c) == self_ ? Slot{source, c, c} : output(c), after(distance));
      }
      for (const int c : handled_by(before(distance))) schedule_.recv(before(distance), output(c));
    }
  }

 private:
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
  const std::vector<Group>& groups_on(int host) const {
    return groups_[static_cast<std::size_t>(host)];
  }
  bool is_alone(Rank rank) const { return alone_[static_cast<std::size_t>(rank)]; }

  void find_groups(int begin, int end) {
    if (layout_.together(begin, end)) {
      const auto host = static_cast<std::size_t>(layout_.host_of(begin));
      groups_[host].push_back({begin, end});
      alone_[static_cast<std::size_t>(begin)] = end - begin == 1;
      return;
    }
    const Split split = split_of(begin, end);
    find_groups(split.begin, split.middle);
    find_groups(split.middle, split.end);
  }

  // Inside the host: inputs go to the handlers. One that no handler could combine with another is
  // left out; it goes to the owner directly.
  void collect_inputs() {
    for (const int c : own_handled()) {
      auto& inputs = inputs_[static_cast<std::size_t>(c)];
      inputs.resize(members_.size());
      inputs[static_cast<std::size_t>(position_)] = input(c);
    }
    for (std::size_t distance = 1; distance < members_.size(); ++distance) {
      const Rank to = after(distance);
      const Rank from = before(distance);
      for (const int c : handled_by(to)) {
        if (deal_.owner(c) == to || !is_alone(self_)) schedule_.send(input(c), to);
      }
      for (const int c : own_handled()) {
        if (deal_.owner(c) != self_ && is_alone(from)) continue;
        const Slot slot = schedule_.unused_raw(c);
        schedule_.recv(from, slot);
        const auto position = static_cast<std::size_t>(layout_.position_of(from));
        inputs_[static_cast<std::size_t>(c)][position] = slot;
      }
    }
  }

  // Handlers combine what the canonical tree combines before anything from another host comes in.
  void reduce_groups() {
    for (const int c : own_handled()) {
      if (deal_.owner(c) == self_) continue;  // An owner reduces everything at once.
      for (const Group& group : groups_on(host_)) {
        if (group.single()) continue;
        const auto first =
            inputs_[static_cast<std::size_t>(c)].begin() + layout_.position_of(group.begin);
        const Slot sum = schedule_.unused_partial(c);
        schedule_.reduce(std::vector<Slot>(first, first + (group.end - group.begin)), {sum});
        arrived_[static_cast<std::size_t>(c)].push_back(sum);
      }
    }
  }

  // Between hosts: each sends the owner of a chunk on another host the values of its groups.
  void exchange_groups() {
    for (int distance = 1; distance < layout_.host_count(); ++distance) {
      for (const int c : owned_on(host_after(distance))) send_groups(c);
      const int from_host = host_before(distance);
      for (const int c : own_handled()) {
        if (deal_.owner(c) == self_) receive_groups(c, from_host);
      }
    }
  }

  void send_groups(int c) {
    const bool handles = deal_.handler(host_, c) == self_;
    if (!handles && !is_alone(self_)) return;
    std::size_t sums = 0;
    for (const Group& group : groups_on(host_)) {
      if (group.single()) {
        if (self_ == group.begin) schedule_.send(input(c), deal_.owner(c));
      } else if (handles) {
        schedule_.send(arrived_[static_cast<std::size_t>(c)][sums++], deal_.owner(c));
      }
    }
  }

  void receive_groups(int c, int from_host) {
    auto& arrived = arrived_[static_cast<std::size_t>(c)];
    arrived.resize(alone_.size());
    for (const Group& group : groups_on(from_host)) {
      const Rank from = group.single() ? Rank(group.begin) : deal_.handler(from_host, c);
      const Slot slot = group.single() ? schedule_.unused_raw(c) : schedule_.unused_partial(c);
      schedule_.recv(from, slot);
      arrived[static_cast<std::size_t>(group.begin)] = slot;
    }
  }

  // What a reduction of a chunk's ranks [begin, end) may take, at its owner, so that the canonical
  // tree over these values is the canonical tree over the ranks: as many values at once as that
  // allows, and partial values of those that it does not.
  std::vector<Slot> operands(int c, int begin, int end) {
    const auto chunk = static_cast<std::size_t>(c);
    if (layout_.host_of(begin) != host_ && layout_.together(begin, end)) {
      return {arrived_[chunk][static_cast<std::size_t>(begin)]};
    }
    if (end - begin == 1) {
      return {inputs_[chunk][static_cast<std::size_t>(layout_.position_of(begin))]};
    }
    const Split split = split_of(begin, end);
    std::vector<Slot> left = operands(c, split.begin, split.middle);
    std::vector<Slot> right = operands(c, split.middle, split.end);
    if (!are_sides(left, right)) right = {combined(c, right)};
    if (!are_sides(left, right)) left = {combined(c, left)};
    left.insert(left.end(), right.begin(), right.end());
    return left;
  }

  // Whether the canonical tree over all of these values has these sides.
  static bool are_sides(const std::vector<Slot>& left, const std::vector<Slot>& right) {
    const auto count = static_cast<int>(left.size() + right.size());
    return std::cmp_equal(split_of(0, count).middle, left.size());
  }

  Slot combined(int c, const std::vector<Slot>& values) {
    if (values.size() == 1) return values.front();
    const Slot sum = schedule_.unused_partial(c);
    schedule_.reduce(values, {sum});
    return sum;
  }

  void spread_to_handlers(Buffer source) {
    for (int distance = 1; distance < layout_.host_count(); ++distance) {
      for (const int c : own_handled()) {
        if (deal_.owner(c) != self_) continue;
        schedule_.send(Slot{source, c, c}, deal_.handler(host_after(distance), c));
      }
      for (const int c : own_handled()) {
        if (deal_.owner_host(c) == host_before(distance)) {
          schedule_.recv(deal_.owner(c), output(c));
        }
      }
    }
  }

  ScheduleBuilder& schedule_;
  const HostLayout& layout_;
  const Deal& deal_;
  Rank self_;
  int host_;
  const std::vector<Rank>& members_;        // Of this host.
  int position_;                            // Among them.
  std::vector<std::vector<Group>> groups_;  // Per host.
  std::vector<bool> alone_;                 // Per rank, whether its group has no other.
  std::vector<std::vector<int>> owned_;     // Per host, chunks with an owner there.
  std::vector<std::vector<int>> handled_;   // Per member of this host, chunks that it handles.
  std::vector<std::vector<Slot>> inputs_;   // Per chunk, by position of the member.
  // Per chunk: at its owner, by first rank of the group; at other handlers, the sums of the host's
  // groups of several ranks.
  std::vector<std::vector<Slot>> arrived_;
};

}  // namespace

// Two-level all-reduce: what can be combined inside a host crosses the network once.
//
//   2 hosts:   0 1 2 | 3 4       every chunk has a handler on each host, one of whom owns it
//
//   chunk c:   0, 2 --> 1        inside: inputs to the handlers, 1 and 4
//              3    --> 4
//              4    --> 1        between: partial values to the owner, 1, which reduces
//              1    --> 4        between: the result to the other handlers
//              1    --> 0, 2     inside: to everybody
//              4    --> 3
//
//   steps           up to 4 on several hosts, 2 on one
//   bytes per host  2(H-1)/H of the buffer each way over the network for H hosts, which is optimal,
//                   where a host's ranks are one subtree of the canonical tree (8+8, 4+4+4, ...);
//                   else its inputs cross as partial values of as many subtrees as they make up
//   bytes per rank  less than 2 times the buffer inside, where hosts are equal
//   scratch         about n slots, raw and partial; more where hosts take turns in the ranks
//   order           canonical, for any layout
//   choose it for   several ranks per host, and a network that is slower than the hosts inside
//   source          Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize
//                   collective operation performance", 2000; with shards rather than leaders
Schedule two_level_all_reduce(const Shape& shape) {
  const HostLayout layout(shape);
  const Deal deal = Deal::in_blocks(layout, shape.rank_count);
  ScheduleBuilder schedule(shape, {.algorithm = "two_level",
                                   .collective = Collective::all_reduce,
                                   .order = Order::canonical,
                                   .chunk_count = deal.chunk_count()});
  TwoLevel steps(schedule, shape, layout, deal);
  steps.reduce_to_owners(shape.rank_count);
  steps.spread_from_owners(Buffer::output);
  return std::move(schedule).build();
}

// Two-level reduce-scatter: the first half of two_level_all_reduce, with chunk r owned by rank r.
//
//   chunk 1 on 0 1 2 | 3 4:   0, 2 --> 1      inside: inputs to the handlers, 1 and 4
//                             3    --> 4
//                             4    --> 1      between: partial values to the owner
//
//   steps           up to 2 on several hosts, 1 on one
//   bytes per host  (H-1)/H of the buffer each way over the network for H equal hosts that are
//                   subtrees of the canonical tree; else more, as in two_level_all_reduce
//   bytes per rank  less than the buffer inside, where hosts are equal
//   scratch         about n slots, raw and partial; more where hosts take turns in the ranks
//   order           canonical, for any layout
//   choose it for   several ranks per host, and a network that is slower than the hosts inside
//   source          Karonis et al., 2000; with shards rather than leaders
Schedule two_level_reduce_scatter(const Shape& shape) {
  const HostLayout layout(shape);
  const Deal deal = Deal::by_rank(layout, shape.rank_count);
  ScheduleBuilder schedule(shape, {.algorithm = "two_level",
                                   .collective = Collective::reduce_scatter,
                                   .order = Order::canonical,
                                   .chunk_count = deal.chunk_count()});
  TwoLevel(schedule, shape, layout, deal).reduce_to_owners(shape.rank_count);
  return std::move(schedule).build();
}

// Two-level all-gather: every chunk comes to every host once.
//
//   chunk 1 on 0 1 2 | 3 4:   1 --> 4         between: to the handler on each other host
//                             1 --> 0, 2      inside: to everybody
//                             4 --> 3
//
//   steps           up to 2 on several hosts, 1 on one
//   bytes per host  (H-1)/H of the buffer each way over the network for H equal hosts; the chunks
//                   of the others in, which is optimal, and its own H-1 times out
//   bytes per rank  less than the buffer inside, where hosts are equal
//   scratch         none
//   order           nothing is combined
//   choose it for   several ranks per host, and a network that is slower than the hosts inside
//   source          Karonis et al., 2000; with shards rather than leaders
Schedule two_level_all_gather(const Shape& shape) {
  const HostLayout layout(shape);
  const Deal deal = Deal::by_rank(layout, shape.rank_count);
  ScheduleBuilder schedule(shape, {.algorithm = "two_level",
                                   .collective = Collective::all_gather,
                                   .chunk_count = deal.chunk_count()});
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  TwoLevel(schedule, shape, layout, deal).spread_from_owners(Buffer::input);
  return std::move(schedule).build();
}

}  // namespace stretto::schedule
