// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/algorithms/two_level_steps.h"

namespace stretto::schedule {
namespace {

// Raw slot c of a rank is for chunk c. It holds this rank's value for the handler of the chunk or,
// if this rank is the handler, the value for the other ranks.
class OnMappedMemory : public TwoLevel {
 public:
  using TwoLevel::TwoLevel;

 protected:
  static Slot stage(int c) { return raw(c, c); }
  bool is_shared() const { return member_count() > 1; }

 private:
  void collect_inputs() override {
    for (const int c : own_handled()) add_input(c, self_, own(input(c)));
    if (!is_shared()) return;
    schedule_.share_raw(assignment_.chunk_count());
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank to = after(distance);
      for (const int c : handled_by(to)) {
        if (needs_input(c, self_)) schedule_.copy(input(c), stage(c));
      }
    }
    schedule_.sync();
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank from = after(distance);
      for (const int c : own_handled()) {
        if (needs_input(c, from)) add_input(c, from, {from, stage(c)});
      }
    }
  }

  std::vector<Place> result_places(int c) override {
    std::vector<Place> places = {own(output(c))};
    if (is_shared()) places.push_back(own(stage(c)));
    return places;
  }

  // A result that an owner has reduced is staged already.
  void spread_inside(Buffer source) override {
    if (!is_shared()) return;
    if (source == Buffer::input) schedule_.share_raw(assignment_.chunk_count());
    for (const int c : own_handled()) {
      const bool is_staged = is_owned_here(c) && source == Buffer::output;
      if (!is_staged) schedule_.copy(whole(c, source), stage(c));
    }
    schedule_.sync();
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank from = after(distance);
      for (const int c : handled_by(from)) {
        schedule_.copy({from, stage(c)}, output(c)).takes(distance == 1);
      }
    }
  }
};

// Whole results go on to the root: through the windows of its host, or as messages.
class ToRoot final : public OnMappedMemory {
 public:
  ToRoot(ScheduleBuilder& schedule, const Shape& shape, const ChunkAssignment& assignment)
      : OnMappedMemory(schedule, shape, assignment),
        root_(shape.root),
        root_host_(assignment.layout().host_of(shape.root)),
        is_near_(assignment.layout().host_of(shape.rank) == root_host_) {}

  void pass_to_root() {
    for (const Slot& result : results_) {
      if (!is_near_) schedule_.send(result, root_);
    }
    if (is_near_ && is_shared()) schedule_.sync();
    if (self_ != root_) return;
    for (int c = 0; c < assignment_.chunk_count(); ++c) {
      const Rank owner = assignment_.owner(c);
      if (!assignment_.is_owned_on(root_host_, c)) {
        schedule_.recv(owner, output(c));
      } else if (owner != self_) {
        schedule_.copy({owner, stage(c)}, output(c)).takes();
      }
    }
  }

 private:
  std::vector<Place> result_places(int c) override {
    if (self_ == root_) return {own(output(c))};
    results_.push_back(is_shared() ? stage(c) : schedule_.unused_raw(c));
    return {own(results_.back())};
  }

  Rank root_;
  int root_host_;
  bool is_near_;
  std::vector<Slot> results_;
};

// For gather and scatter: the ranks of the root's host exchange chunks through shared slots, whose
// number the algorithm says; the other ranks exchange messages with the root.
class AroundRoot {
 public:
  AroundRoot(ScheduleBuilder& schedule, const Shape& shape)
      : schedule_(schedule),
        layout_(shape),
        host_(layout_.members(layout_.host_of(shape.root))),
        is_near_(layout_.host_of(shape.rank) == layout_.host_of(shape.root)) {}

  bool is_near() const { return is_near_; }
  bool is_near(Rank rank) const { return layout_.host_of(rank) == layout_.host_of(host_.front()); }
  const std::vector<Rank>& host() const { return host_; }
  int position_of(Rank rank) const { return layout_.position_of(rank); }
  void share(std::int32_t slots) {
    if (is_near_ && host_.size() > 1) schedule_.share_raw(slots);
  }
  void meet() {
    if (host_.size() > 1) schedule_.sync();
  }

 private:
  ScheduleBuilder& schedule_;
  HostLayout layout_;
  const std::vector<Rank>& host_;  // Ranks of the root's host.
  bool is_near_;
};

}  // namespace

// Two-level all-reduce on mapped memory: like two_level, but without messages inside hosts.
void two_level_mapped_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_all_reduce_by<OnMappedMemory>(schedule, shape, ChunkAssignment::in_blocks(shape));
}

// Two-level all-reduce on mapped memory with one phase between hosts: each host sends its combined
// values to all other hosts, and every host combines all values. Half as many messages wait for
// each other as where each chunk has one owner; with more than two hosts, each host sends more
// bytes.
void two_level_eager_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_all_reduce_by<OnMappedMemory>(schedule, shape, ChunkAssignment::on_every_host(shape));
}

// Two-level reduce-scatter on mapped memory: the first half of two_level_mapped_all_reduce, with
// chunk r owned by rank r.
void two_level_mapped_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_reduce_scatter_by<OnMappedMemory>(schedule, shape);
}

// Two-level all-gather on mapped memory: every chunk is sent to every host once; there its handler
// stages it for the other ranks.
void two_level_mapped_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_all_gather_by<OnMappedMemory>(schedule, shape);
}

// Two-level reduce on mapped memory: the first half of two_level_mapped_all_reduce. Then the owners
// pass the results to the root, through the windows of its host or as messages.
void two_level_mapped_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkAssignment assignment = ChunkAssignment::in_blocks(shape);
  schedule.cut_into(assignment.chunk_count());
  ToRoot steps(schedule, shape, assignment);
  steps.reduce_to_owners();
  steps.pass_to_root();
}

// Two-level gather on mapped memory: the ranks of the root's host stage their chunks for the root;
// the other ranks send theirs.
void two_level_mapped_gather(ScheduleBuilder& schedule, const Shape& shape) {
  AroundRoot around(schedule, shape);
  const ChunkIndex own = shard_of(shape.rank);
  around.share(1);
  if (shape.rank != shape.root) {
    if (around.is_near()) {
      schedule.copy(input(own), raw(0, own));
      around.meet();
    } else {
      schedule.send(input(own), shape.root);
    }
    return;
  }
  around.meet();
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, distance);
    if (!around.is_near(from)) schedule.recv(from, output(shard_of(from)));
  }
  for (const Rank from : around.host()) {
    const ChunkIndex chunk = shard_of(from);
    if (from != shape.rank) schedule.copy({from, raw(0, chunk)}, output(chunk)).takes();
  }
  schedule.copy(input(own), output(own));
}

// Two-level scatter on mapped memory: the root stages the chunks of its host's ranks and sends the
// other ranks theirs.
void two_level_mapped_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  AroundRoot around(schedule, shape);
  const ChunkIndex own = shard_of(shape.rank);
  around.share(static_cast<std::int32_t>(around.host().size()));
  const auto stage = [&](Rank rank) { return raw(around.position_of(rank), shard_of(rank)); };
  if (shape.rank != shape.root) {
    if (around.is_near()) {
      around.meet();
      schedule.copy({shape.root, stage(shape.rank)}, output(own)).takes();
    } else {
      schedule.recv(shape.root, output(own));
    }
    return;
  }
  for (const Rank to : around.host()) {
    if (to != shape.rank) schedule.copy(input(shard_of(to)), stage(to));
  }
  around.meet();
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    if (!around.is_near(to)) schedule.send(input(shard_of(to)), to);
  }
  schedule.copy(input(own), output(own));
}

// Two-level all-to-all on mapped memory: chunks for ranks of the same host are staged there; chunks
// for other hosts are sent directly to their ranks.
void two_level_mapped_all_to_all(ScheduleBuilder& schedule, const Shape& shape) {
  const HostLayout layout(shape);
  const int host = layout.host_of(shape.rank);
  const std::vector<Rank>& members = layout.members(host);
  if (members.size() > 1) schedule.share_raw(static_cast<std::int32_t>(members.size()));
  const auto stage = [&](Rank from, Rank to) {
    return raw(layout.position_of(to), parcel(shape, from, to));
  };
  for (const Rank to : members) {
    if (to != shape.rank)
      schedule.copy(input(parcel(shape, shape.rank, to)), stage(shape.rank, to));
  }
  if (members.size() > 1) schedule.sync();
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank to = neighbour(shape, distance);
    const Rank from = neighbour(shape, -distance);
    if (layout.host_of(to) != host) schedule.send(input(parcel(shape, shape.rank, to)), to);
    if (layout.host_of(from) != host) schedule.recv(from, output(parcel(shape, from, shape.rank)));
  }
  for (const Rank from : members) {
    const ChunkIndex chunk = parcel(shape, from, shape.rank);
    const Place source =
        from == shape.rank ? Place{from, input(chunk)} : Place{from, stage(from, shape.rank)};
    schedule.copy(source, output(chunk)).takes();
  }
}

// Two-level barrier on mapped memory: the ranks of each host sync, then the first rank of each host
// hears of all other hosts, then the ranks of each host sync again.
void two_level_mapped_barrier(ScheduleBuilder& schedule, const Shape& shape) {
  const HostLayout layout(shape);
  const int host = layout.host_of(shape.rank);
  const int hosts = layout.host_count();
  const bool is_shared = layout.members(host).size() > 1;
  if (is_shared) schedule.sync();
  if (layout.members(host).front() == shape.rank) {
    for (int distance = 1; distance < hosts; distance *= 2) {
      schedule.send_signal(layout.members((host + distance) % hosts).front());
      schedule.recv_signal(layout.members((host + hosts - distance) % hosts).front());
    }
  }
  if (is_shared && hosts > 1) schedule.sync();
}

}  // namespace stretto::schedule
