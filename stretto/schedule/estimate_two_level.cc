// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/chunk_owners.h"
#include "stretto/schedule/estimate_model.h"

namespace stretto::schedule {
namespace {

using Model = EstimateModel;
using Pairs = HostSummary::Pairs;
using Kind = HostSummary::Kind;

// Who owns the chunks. of_hosts: hosts as owner_hosts() says. of_ranks: each rank one.
// of_other_hosts: in a broadcast, each host but the root's equally many. of_every_host: every host
// owns all chunks.
enum class Chunks { of_hosts, of_ranks, of_other_hosts, of_every_host };

double chunks_of(const HostSummary& hosts, Chunks chunks) {
  const int n = hosts.rank_count();
  if (chunks == Chunks::of_ranks) return n;
  if (chunks == Chunks::of_every_host) {
    return std::ranges::max(hosts.kinds(), {}, &Kind::ranks).ranks;
  }
  if (chunks == Chunks::of_hosts) return chunk_count_for(n, hosts.host_count());
  const int turns = std::max(1, hosts.host_count() - 1);
  return std::max(1, (n - 1 + turns - 1) / turns * turns);
}

// The halves of an algorithm: it reduces to the owners, or spreads from the owners, or both.
struct Halves {
  bool reduces = false;
  bool spreads = false;
};

// How the ranks of a host reach each other's data.
enum class Inside { messages, mapped };

// Phases of the two-level algorithms.
class TwoLevelPhases {
 public:
  TwoLevelPhases(const Model& model, Inside inside, Chunks chunks)
      : m_(model),
        hosts_(model.hosts.host_count()),
        owners_(chunks),
        mapped_(inside == Inside::mapped),
        chunks_(chunks_of(model.hosts, chunks)),
        each_(model.bytes / chunks_) {
    for (const Kind& kind : m_.hosts.kinds()) {
      values_ += kind.hosts * values_of(kind);
      subtrees_ += 1.0 * kind.hosts * subtrees_of(kind);
    }
  }

  // The inputs of all ranks go to their handlers on the host.
  double collect() const {
    return worst([&](const Kind& kind) {
      const double shown = chunks_ * (kind.ranks - 1) / kind.ranks;
      if (!mapped_) return inside(shown);
      return m_.process(shown * each_) + m_.sync(kind.ranks);
    });
  }
  // Handlers combine the subtrees of their host and send the values to the owners, which reduce all
  // values.
  double reduce() const {
    const double own = worst([&](const Kind& kind) {
      const double joined = 1.0 * (kind.ranks - kind.single_subtrees);
      return m_.process(joined * std::min(chunks_, owned_elsewhere(kind)) / kind.ranks * each_);
    });
    const double sent = worst([&](const Kind& kind) {
      const double out = owned_elsewhere(kind) * values_of(kind);
      const double in = owned(kind) * (values_ - values_of(kind));
      return between({.sent = owned_elsewhere(kind) * subtrees_of(kind),
                      .received = owned(kind) * (subtrees_ - subtrees_of(kind))},
                     out, in, kind);
    });
    const double whole = worst([&](const Kind& kind) {
      const double own_values = is_everywhere() ? values_of(kind) : kind.ranks;
      const double operands = own_values + values_ - values_of(kind);
      return m_.process(std::ceil(owned(kind) / kind.ranks) * operands * each_);
    });
    return (hosts_ > 1 ? own + sent : 0) + whole;
  }
  // Owners send their chunks to the handlers on other hosts.
  double spread() const {
    if (hosts_ < 2 || is_everywhere()) return 0;
    return worst([&](const Kind& kind) {
      const Messages messages{owned(kind) * (hosts_ - 1), chunks_ - owned(kind)};
      return between(messages, messages.sent, messages.received, kind);
    });
  }
  // Handlers pass their chunks to the other ranks of the host.
  double show() const {
    return worst([&](const Kind& kind) {
      if (!mapped_) return inside(chunks_ * (kind.ranks - 1) / kind.ranks);
      return kind.ranks < 2 ? 0 : m_.process(chunks_ * each_) + m_.sync(kind.ranks);
    });
  }
  // The time of the halves if their phases follow one another.
  double in_turn(Halves halves) const {
    return (halves.reduces ? collect() + reduce() : 0) + (halves.spreads ? spread() + show() : 0);
  }
  // The time that ports save where the two halves overlap: if a host sends more than it receives in
  // one half and receives more in the other, both directions are busy at once.
  double overlap() const {
    const auto port = [&](Halves halves) {
      return worst([&](const Kind& kind) {
        const double others = chunks_ - owned(kind);
        const double out = (halves.reduces ? others * values_of(kind) : 0) +
                           (halves.spreads ? owned(kind) * (hosts_ - 1) : 0);
        const double in = (halves.reduces ? owned(kind) * (values_ - values_of(kind)) : 0) +
                          (halves.spreads ? others : 0);
        return m_.wire(std::max(out, in) * each_);
      });
    };
    if (hosts_ < 2 || is_everywhere()) return 0;
    return port({.reduces = true}) + port({.spreads = true}) -
           port({.reduces = true, .spreads = true});
  }
  // The number of segments of all chunks.
  double pieces() const { return m_.segments(each_) * chunks_; }
  // Owners send rank 0 the whole results. While these arrive, inputs leave its host.
  double pass_to_root() const {
    const Kind& kind = m_.hosts.kinds().front();
    const double near = owned(kind);
    const double far = chunks_ - near;
    const double local =
        kind.ranks < 2
            ? 0
            : m_.sync(kind.ranks) + m_.process(near * (kind.ranks - 1) / kind.ranks * each_);
    if (hosts_ < 2) return local;
    const double out = far * values_of(kind);
    const double in = near * (values_ - values_of(kind));
    const double beside = std::max(out, in) + far - std::max(out, in + far);
    return local + m_.between(far, far * each_) - m_.wire(beside * each_) * (1 - 1 / pieces());
  }
  // Rank 0 sends chunks to the other hosts, which then send them to each other.
  double deal_out() const {
    if (hosts_ < 2) return mapped_ ? m_.process(m_.bytes) : m_.fan(each_);
    const double others = hosts_ - 1;
    const double near = mapped_ || m_.hosts.ranks_of_first_host() == 1 ? 0 : chunks_;
    const double staged = mapped_ && m_.hosts.ranks_of_first_host() > 1 ? m_.process(m_.bytes) : 0;
    const double root = staged + std::max(m_.between(chunks_, m_.bytes), inside(near));
    const double passed = chunks_ / others * (others - 1);
    if (passed == 0) return root;
    const double passing = worst([&](const Kind& kind) {
      return between({passed, passed}, passed, passed, kind);
    });
    // This happens chunk by chunk. Each host sends on its last chunk when the root has sent all
    // chunks.
    return std::max(root + m_.between(others - 1, (others - 1) * each_),
                    passing + m_.between(1, each_));
  }

 private:
  template <class Seconds>
  double worst(const Seconds& seconds) const {
    double most = 0;
    for (const Kind& kind : m_.hosts.kinds()) most = std::max(most, double{seconds(kind)});
    return most;
  }
  double inside(double messages) const {
    return m_.hosts.has_hosts() ? m_.inside(messages, each_)
                                : m_.exchange(messages, each_, Pairs{});
  }
  struct Messages {
    double sent = 0;
    double received = 0;
  };
  // The time of a host that sends and receives these messages, with `out` and `in` chunks. Its
  // ranks share the messages. The measured time of several messages is that of exchanges, with as
  // many messages each way.
  double between(const Messages& messages, double out, double in, const Kind& kind) const {
    const double exchanged = (messages.sent + messages.received) / 2;
    return m_.between(exchanged / kind.ranks, std::max(out, in) * each_);
  }
  static int subtrees_of(const Kind& kind) { return kind.single_subtrees + kind.joint_subtrees; }
  bool is_everywhere() const { return owners_ == Chunks::of_every_host; }
  double owned(const Kind& kind) const {
    if (is_everywhere()) return chunks_;
    if (owners_ == Chunks::of_ranks) return kind.ranks;
    return owners_ == Chunks::of_hosts ? kind.owned_chunks : chunks_ / hosts_;
  }
  // How many chunks all other hosts own together.
  double owned_elsewhere(const Kind& kind) const {
    return is_everywhere() ? chunks_ * (hosts_ - 1) : chunks_ - owned(kind);
  }
  // The size of the values that a host sends for one chunk that it does not own, in chunks.
  double values_of(const Kind& kind) const {
    return kind.single_subtrees + m_.scale * kind.joint_subtrees;
  }

  const Model& m_;
  double hosts_;
  Chunks owners_;
  bool mapped_;
  double chunks_;
  double each_;
  double values_ = 0;    // Sum of values_of() over all hosts.
  double subtrees_ = 0;  // Sum of subtrees_of() over all hosts.
};

// The halves overlap, because an owner spreads a chunk as soon as it has reduced it. Only the first
// chunk of the first segment and the last chunk of the last one do not overlap.
double all_reduce(const Model& m, Inside inside, Chunks chunks) {
  const TwoLevelPhases phases(m, inside, chunks);
  const double seconds = phases.in_turn({.reduces = true, .spreads = true});
  return seconds - phases.overlap() * (1 - 1 / phases.pieces());
}

double reduce_scatter(const Model& m, Inside inside) {
  return TwoLevelPhases(m, inside, Chunks::of_ranks).in_turn({.reduces = true});
}

double all_gather(const Model& m, Inside inside) {
  return TwoLevelPhases(m, inside, Chunks::of_ranks).in_turn({.spreads = true});
}

double broadcast(const Model& m, Inside inside) {
  const TwoLevelPhases phases(m, inside, Chunks::of_other_hosts);
  return phases.deal_out() + phases.show();
}

}  // namespace

namespace time_of {

double two_level_all_reduce(const Model& m) {
  return all_reduce(m, Inside::messages, Chunks::of_hosts);
}
double two_level_reduce_scatter(const Model& m) { return reduce_scatter(m, Inside::messages); }
double two_level_all_gather(const Model& m) { return all_gather(m, Inside::messages); }
double two_level_broadcast(const Model& m) { return broadcast(m, Inside::messages); }

double two_level_mapped_all_reduce(const Model& m) {
  return all_reduce(m, Inside::mapped, Chunks::of_hosts);
}
double two_level_mapped_reduce_scatter(const Model& m) { return reduce_scatter(m, Inside::mapped); }
double two_level_mapped_all_gather(const Model& m) { return all_gather(m, Inside::mapped); }
double two_level_mapped_broadcast(const Model& m) { return broadcast(m, Inside::mapped); }

double two_level_eager_all_reduce(const Model& m) {
  return all_reduce(m, Inside::mapped, Chunks::of_every_host);
}

double two_level_mapped_reduce(const Model& m) {
  const TwoLevelPhases phases(m, Inside::mapped, Chunks::of_hosts);
  return phases.collect() + phases.reduce() + phases.pass_to_root();
}

double two_level_mapped_gather(const Model& m) {
  const double each = m.bytes / m.n;
  const int near = m.hosts.ranks_of_first_host();
  const double local = m.process(near * each) + m.sync(near);
  return local + m.between(m.n - near, (m.n - near) * each);
}

double two_level_mapped_scatter(const Model& m) { return two_level_mapped_gather(m); }

double two_level_mapped_all_to_all(const Model& m) {
  const double each = m.bytes / m.n;
  double seconds = 0;
  for (const Kind& kind : m.hosts.kinds()) {
    const double staged = m.process((kind.ranks - 1) * each) + m.sync(kind.ranks);
    const double far = m.n - kind.ranks;
    const double sent = m.between(far, kind.ranks * far * each);
    seconds = std::max(seconds, staged + std::max(sent, m.process(kind.ranks * each)));
  }
  return seconds;
}

double two_level_mapped_barrier(const Model& m) {
  double inside = 0;
  for (const Kind& kind : m.hosts.kinds()) inside = std::max(inside, m.sync(kind.ranks));
  const int hosts = m.hosts.host_count();
  if (hosts < 2) return inside;
  return 2 * inside + std::ceil(std::log2(hosts)) * m.between(1, 0);
}

}  // namespace time_of

std::optional<int> two_level_chunk_count(const Algorithm& algorithm, const HostSummary& hosts) {
  if (!algorithm.name.starts_with("two_level")) return std::nullopt;
  const bool is_broadcast = algorithm.collective == Collective::broadcast;
  const Chunks chunks = algorithm.name == "two_level_eager" ? Chunks::of_every_host
                        : is_broadcast                      ? Chunks::of_other_hosts
                                                            : Chunks::of_hosts;
  return static_cast<int>(chunks_of(hosts, chunks));
}

int shared_slots(const Algorithm& algorithm, const HostSummary& hosts) {
  switch (algorithm.collective) {
    case Collective::all_to_all:
    case Collective::scatter:
      return std::ranges::max(hosts.kinds(), {}, &Kind::ranks).ranks;
    case Collective::gather:
      return 1;
    default:
      return chunk_count(algorithm, hosts);
  }
}

}  // namespace stretto::schedule
