// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/chunk_owners.h"

namespace stretto::schedule {
namespace {

// All ranks but the root, renumbered without a gap, and their hosts. There is at least one such
// rank.
class Others {
 public:
  explicit Others(const Shape& shape)
      : root_(shape.root.value()), hosts_(hosts_of(shape)), layout_(shape_of(hosts_)) {}

  const HostLayout& layout() const { return layout_; }
  Rank rank_of(Rank other) const { return other < root_ ? other : Rank(other.value() + 1); }
  Rank other_of(Rank rank) const { return rank < root_ ? rank : Rank(rank.value() - 1); }
  // The root's host in the layout, -1 if the root is alone there.
  int root_host() const { return root_host_; }

 private:
  // Hosts are numbered in the order in which they first appear. Without the root, this order may
  // change.
  std::vector<std::int32_t> hosts_of(const Shape& shape) {
    const HostLayout all(shape);
    std::vector<std::int32_t> number(static_cast<std::size_t>(all.host_count()), -1);
    std::vector<std::int32_t> hosts;
    std::int32_t count = 0;
    for (int rank = 0; rank < shape.rank_count; ++rank) {
      if (rank == root_) continue;
      auto& host = number[static_cast<std::size_t>(all.host_of(rank))];
      if (host < 0) host = count++;
      hosts.push_back(host);
    }
    root_host_ = number[static_cast<std::size_t>(all.host_of(shape.root))];
    return hosts;
  }

  static Shape shape_of(const std::vector<std::int32_t>& hosts) {
    return {.rank_count = static_cast<std::int32_t>(hosts.size()), .hosts = hosts};
  }

  int root_;
  int root_host_ = -1;
  std::vector<std::int32_t> hosts_;
  HostLayout layout_;
};

// The handler of a chunk on each host: the first of its ranks to get the chunk. The hosts other
// than the root's take turns in getting a chunk from the root and sending it to each other. The
// root's own host gets all chunks from the root.
class Route {
 public:
  explicit Route(const Shape& shape) : others_(shape) {
    const HostLayout& layout = others_.layout();
    for (int host = 0; host < layout.host_count(); ++host) {
      if (host != root_host() || layout.host_count() == 1) first_hosts_.push_back(host);
    }
    chunk_count_ = chunk_count_for(layout.rank_count(), static_cast<int>(first_hosts_.size()));
  }

  const Others& others() const { return others_; }
  int root_host() const { return others_.root_host(); }
  int chunk_count() const { return chunk_count_; }
  int first_host(int chunk) const {
    return first_hosts_[static_cast<std::size_t>(chunk) % first_hosts_.size()];
  }
  bool comes_from_root(int host, int chunk) const {
    return host == root_host() || host == first_host(chunk);
  }
  Rank handler(int host, int chunk) const {
    const auto& members = others_.layout().members(host);
    const auto place = static_cast<std::size_t>(chunk) * members.size();
    return others_.rank_of(members[place / static_cast<std::size_t>(chunk_count_)]);
  }

 private:
  Others others_;
  std::vector<int> first_hosts_;
  int chunk_count_ = 1;
};

// The slot of a chunk in the window of a rank.
Slot stage(int c) { return raw(c, c); }

// The steps of the root. With mapped memory, the other ranks of its host read its window; otherwise
// the root sends them messages.
void send_from_root(ScheduleBuilder& schedule, const Route& route, bool mapped) {
  const int root_host = route.root_host();
  if (mapped && root_host >= 0) {
    for (int c = 0; c < route.chunk_count(); ++c) schedule.copy(input(c), stage(c));
    schedule.sync();
  }
  for (int c = 0; c < route.chunk_count(); ++c) {
    const int first_host = route.first_host(c);
    const bool is_near = first_host == root_host;
    if (!mapped || !is_near) schedule.send(input(c), route.handler(first_host, c));
    if (!mapped && root_host >= 0 && !is_near) {
      schedule.send(input(c), route.handler(root_host, c));
    }
  }
  for (int c = 0; c < route.chunk_count(); ++c) schedule.copy(input(c), output(c));
}

// Between hosts: the handler that has a chunk from the root sends it to the handlers on the other
// hosts.
void pass_between(ScheduleBuilder& schedule, const Route& route, int host,
                  const std::vector<int>& handled) {
  const int hosts = route.others().layout().host_count();
  for (int distance = 1; distance < hosts; ++distance) {
    const int to_host = (host + distance) % hosts;
    const int from_host = (host + hosts - distance) % hosts;
    for (const int c : handled) {
      const bool sends = route.first_host(c) == host && !route.comes_from_root(to_host, c);
      if (sends) schedule.send(output(c), route.handler(to_host, c));
    }
    for (const int c : handled) {
      const bool receives = route.first_host(c) == from_host && !route.comes_from_root(host, c);
      if (receives) schedule.recv(route.handler(from_host, c), output(c));
    }
  }
}

// Adds the steps of a rank other than the root.
class PassingOn {
 public:
  PassingOn(ScheduleBuilder& schedule, const Shape& shape, const Route& route)
      : schedule_(schedule),
        route_(route),
        root_(shape.root),
        host_(layout().host_of(route.others().other_of(shape.rank))),
        members_(layout().members(host_)),
        position_(position_of(shape.rank)),
        handled_(members_.size()) {
    for (int c = 0; c < route.chunk_count(); ++c) {
      handled_[position_of(route.handler(host_, c))].push_back(c);
    }
  }

  bool is_near() const { return host_ == route_.root_host(); }

  // The handlers receive their chunks.
  void take() {
    for (const int c : handled_[position_]) {
      if (route_.comes_from_root(host_, c)) schedule_.recv(root_, output(c));
    }
    pass_between(schedule_, route_, host_, handled_[position_]);
  }
  // The handlers pass their chunks to the other ranks of the host.
  void show_by_messages() {
    for (std::size_t distance = 1; distance < members_.size(); ++distance) {
      const std::size_t to = (position_ + distance) % members_.size();
      const std::size_t from = (position_ + members_.size() - distance) % members_.size();
      for (const int c : handled_[position_]) schedule_.send(output(c), member(to));
      for (const int c : handled_[from]) schedule_.recv(member(from), output(c));
    }
  }
  void show_in_window() {
    if (members_.size() == 1) return;
    schedule_.share_raw(route_.chunk_count());
    for (const int c : handled_[position_]) schedule_.copy(output(c), stage(c));
    schedule_.sync();
    for (std::size_t distance = 1; distance < members_.size(); ++distance) {
      const std::size_t from = (position_ + distance) % members_.size();
      for (const int c : handled_[from]) {
        schedule_.copy({member(from), stage(c)}, output(c)).takes(distance == 1);
      }
    }
  }
  void read_root() {
    schedule_.share_raw(route_.chunk_count());
    schedule_.sync();
    const bool is_before_root = member((position_ + 1) % members_.size()) == root_;
    for (int c = 0; c < route_.chunk_count(); ++c) {
      schedule_.copy({root_, stage(c)}, output(c)).takes(is_before_root);
    }
  }

 private:
  const HostLayout& layout() const { return route_.others().layout(); }
  std::size_t position_of(Rank rank) const {
    return static_cast<std::size_t>(layout().position_of(route_.others().other_of(rank)));
  }
  Rank member(std::size_t position) const { return route_.others().rank_of(members_[position]); }

  ScheduleBuilder& schedule_;
  const Route& route_;
  Rank root_;
  int host_;
  const std::vector<Rank>& members_;
  std::size_t position_;                   // Of this rank in members_.
  std::vector<std::vector<int>> handled_;  // Per member, the chunks that it handles.
};

void broadcast_by(ScheduleBuilder& schedule, const Shape& shape, bool mapped) {
  if (shape.rank_count == 1) return schedule.copy(input(0), output(0));
  const Route route(shape);
  schedule.cut_into(route.chunk_count());
  if (shape.rank == shape.root) {
    if (mapped && route.root_host() >= 0) schedule.share_raw(route.chunk_count());
    return send_from_root(schedule, route, mapped);
  }
  PassingOn passing(schedule, shape, route);
  if (mapped && passing.is_near()) {
    passing.read_root();
  } else {
    passing.take();
    mapped ? passing.show_in_window() : passing.show_by_messages();
  }
}

}  // namespace

// Two-level broadcast: every host receives the buffer once, in chunks for its different ranks,
// which then pass their chunks to each other.
void two_level_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  broadcast_by(schedule, shape, /*mapped=*/false);
}

// Two-level broadcast on mapped memory: like two_level, but without messages inside hosts.
void two_level_mapped_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  broadcast_by(schedule, shape, /*mapped=*/true);
}

}  // namespace stretto::schedule
