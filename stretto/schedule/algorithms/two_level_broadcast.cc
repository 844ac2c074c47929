// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {
namespace {

// All ranks but the root, renumbered without a gap, and their hosts. At least one.
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
  // Hosts are numbered as they first appear, and without the root another may appear first.
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

// Who gets a chunk first on each host. The hosts other than the root's take turns in getting it
// from the root and showing it to each other; the root's own has it all from the root.
class Route {
 public:
  explicit Route(const Others& others) : others_(others) {
    const HostLayout& layout = others.layout();
    int ranks = 0;
    for (int host = 0; host < layout.host_count(); ++host) {
      ranks += static_cast<int>(layout.members(host).size());
      if (host != others.root_host() || layout.host_count() == 1) first_hosts_.push_back(host);
    }
    const auto turns = static_cast<int>(first_hosts_.size());
    chunk_count_ = (ranks + turns - 1) / turns * turns;
  }

  int chunk_count() const { return chunk_count_; }
  int first_host(int chunk) const {
    return first_hosts_[static_cast<std::size_t>(chunk) % first_hosts_.size()];
  }
  bool comes_from_root(int host, int chunk) const {
    return host == others_.root_host() || host == first_host(chunk);
  }
  Rank handler(int host, int chunk) const {
    const auto& members = others_.layout().members(host);
    const auto place = static_cast<std::size_t>(chunk) * members.size();
    return others_.rank_of(members[place / static_cast<std::size_t>(chunk_count_)]);
  }

 private:
  const Others& others_;
  std::vector<int> first_hosts_;
  int chunk_count_ = 1;
};

void send_from_root(ScheduleBuilder& schedule, const Others& others, const Route& route) {
  const int root_host = others.root_host();
  for (int c = 0; c < route.chunk_count(); ++c) {
    schedule.send(input(c), route.handler(route.first_host(c), c));
    if (root_host >= 0 && root_host != route.first_host(c)) {
      schedule.send(input(c), route.handler(root_host, c));
    }
  }
  for (int c = 0; c < route.chunk_count(); ++c) schedule.copy(input(c), output(c));
}

// Between hosts: who has a chunk from the root sends it to its other handlers.
void pass_between(ScheduleBuilder& schedule, const Others& others, const Route& route, int host,
                  const std::vector<int>& handled) {
  const int hosts = others.layout().host_count();
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

void pass_on(ScheduleBuilder& schedule, const Shape& shape, const Others& others,
             const Route& route) {
  const Rank self = others.other_of(shape.rank);
  const int host = others.layout().host_of(self);
  const auto& members = others.layout().members(host);
  std::vector<std::vector<int>> handled(members.size());
  for (int c = 0; c < route.chunk_count(); ++c) {
    const Rank handler = others.other_of(route.handler(host, c));
    handled[static_cast<std::size_t>(others.layout().position_of(handler))].push_back(c);
  }
  const auto position = static_cast<std::size_t>(others.layout().position_of(self));
  for (const int c : handled[position]) {
    if (route.comes_from_root(host, c)) schedule.recv(shape.root, output(c));
  }
  pass_between(schedule, others, route, host, handled[position]);
  for (std::size_t distance = 1; distance < members.size(); ++distance) {
    const auto to = (position + distance) % members.size();
    const auto from = (position + members.size() - distance) % members.size();
    for (const int c : handled[position]) schedule.send(output(c), others.rank_of(members[to]));
    for (const int c : handled[from]) schedule.recv(others.rank_of(members[from]), output(c));
  }
}

Schedule alone(const Shape& shape, const ScheduleBuilder::Options& options) {
  ScheduleBuilder schedule(shape, options);
  schedule.copy(input(0), output(0));
  return std::move(schedule).build();
}

}  // namespace

// Two-level broadcast: the buffer comes to every host once, dealt out to its ranks, who show each
// other what they got.
//
//   root 0 of 0 1 2 | 3 4 | 5:   0 --> 1      inside the root's host
//                                0 --> 3      between: the hosts take turns in getting a chunk
//                                3 --> 5      between: and show it to the others
//                                1 --> 2      inside: to everybody
//                                3 --> 4
//
//   steps           3 at most; 2 on one host
//   bytes per host  the root's sends the buffer once, which is optimal; another (H-2)/(H-1) of it
//   bytes per rank  the root sends the buffer twice where others share its host and there are more
//   scratch         none
//   order           nothing is combined
//   choose it for   several ranks per host, and a network that is slower than the hosts inside
//   source          Karonis et al., 2000; with shards rather than leaders
Schedule two_level_broadcast(const Shape& shape) {
  ScheduleBuilder::Options options{.algorithm = "two_level", .collective = Collective::broadcast};
  if (shape.rank_count == 1) return alone(shape, options);
  const Others others(shape);
  const Route route(others);
  options.chunk_count = route.chunk_count();
  ScheduleBuilder schedule(shape, options);
  if (shape.rank == shape.root) {
    send_from_root(schedule, others, route);
  } else {
    pass_on(schedule, shape, others, route);
  }
  return std::move(schedule).build();
}

}  // namespace stretto::schedule
