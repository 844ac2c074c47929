// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/cost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/base/check.h"
#include "stretto/schedule/joint.h"

namespace stretto::schedule {
namespace {

constexpr std::size_t kSegmentsPlayed = 8;
constexpr std::size_t kSegmentsOfLane = 3;

// The properties of a step that decide its cost.
struct StepCost {
  std::int32_t rank = 0;
  StepKind kind = StepKind::sync;
  std::int32_t partner = JointSchedule::kNone;
  double bytes = 0;  // Of one segment: sent, or read and written by the processor.
};

// A discrete-event simulation of some segments of a collective.
class Simulation {
 public:
  Simulation(const JointSchedule& joint, const CostQuery& query, double segment_bytes,
             std::size_t segments)
      : joint_(joint),
        link_(query.link),
        local_link_(query.local_link),
        hosts_(query.hosts),
        segments_(segments) {
    const auto& head = joint.schedules().front();
    at_once_ = query.lanes > 0                                     ? query.lanes
               : std::cmp_equal(head.team.size(), head.rank_count) ? 1
                                                                   : 2;
    ranks_.resize(joint.schedules().size());
    for (std::size_t step = 0; step < joint.step_count(); ++step) {
      steps_.push_back(cost_of(step, segment_bytes, query.partial_scale));
      sync_number_.push_back(steps_.back().kind == StepKind::sync ? number_sync(step) : 0);
    }
    if (!hosts_.empty()) {
      host_ports_.resize(static_cast<std::size_t>(std::ranges::max(hosts_)) + 1);
    }
    pending_.resize(segments * steps_.size());
    flags_.resize(pending_.size());
    sync_arrivals_.resize(segments * sync_members_.size());
  }

  // When each segment has ended on all ranks, in seconds.
  std::vector<double> run() {
    ends_.assign(segments_, 0.0);
    unfinished_.assign(segments_ * ranks_.size(), 0);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t s = 0; s < std::min(at_once_, segments_); ++s) open(s, rank, 0.0);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.what) {
        case What::ended:
          end(event.instance, event.seconds);
          break;
        case What::ready:
          start(event.instance, event.seconds);
          break;
        case What::arrived:
          meet(event.instance, event.seconds);
          break;
        case What::leaves:
          leave(event.instance, event.seconds);
          break;
        case What::entered:
          enter(event.instance, event.seconds);
          break;
      }
    }
    return ends_;
  }

 private:
  // A step in a segment: segment * steps + step.
  using Instance = std::size_t;
  // leaves: a message has left its rank for the port of the host. entered: it has passed the port
  // of the receiving host and enters its rank.
  enum class What { ended, ready, arrived, leaves, entered };
  struct Event {
    double seconds;
    What what;
    Instance instance;
    friend bool operator>(const Event& a, const Event& b) {
      return std::tie(a.seconds, a.what, a.instance) > std::tie(b.seconds, b.what, b.instance);
    }
  };
  // Times until which the ports of a host, or the resources of a rank, are busy.
  struct Ports {
    double out = 0;
    double in = 0;
  };
  struct Resources {
    double port_out = 0;
    double port_in = 0;
    double processor = 0;
    std::size_t syncs = 0;
  };

  // The number of the sync that this step is part of, the same on all ranks of the team.
  std::size_t number_sync(std::size_t step) {
    const Schedule& schedule = joint_.schedule_of(step);
    const std::size_t nth = ranks_[joint_.rank_of(step)].syncs++;
    const auto [found, added] =
        syncs_.try_emplace({schedule.team.front(), nth}, sync_members_.size());
    if (added) sync_members_.emplace_back();
    sync_members_[found->second].push_back(static_cast<std::int32_t>(step));
    return found->second;
  }

  StepCost cost_of(std::size_t index, double segment_bytes, int partial_scale) const {
    const Step& step = joint_.step(index);
    const Schedule& schedule = joint_.schedule_of(index);
    const auto bytes_of = [=](const Place& place) {
      return segment_bytes * (place.slot.buffer == Buffer::partial ? partial_scale : 1);
    };
    double bytes = 0;
    for (const Place& place : schedule.sources(step)) bytes += bytes_of(place);
    const auto targets = schedule.targets(step);
    const bool receives = step.kind == StepKind::recv;
    for (std::size_t i = receives ? 0 : 1; i < targets.size(); ++i) bytes += bytes_of(targets[i]);
    return {static_cast<std::int32_t>(joint_.rank_of(index)), step.kind, joint_.partner(index),
            bytes};
  }

  const StepCost& step_of(Instance instance) const { return steps_[instance % steps_.size()]; }

  // Lets a rank begin a segment.
  void open(std::size_t segment, std::size_t rank, double now) {
    const auto first = static_cast<std::size_t>(joint_.first_step(rank));
    const auto last = static_cast<std::size_t>(joint_.first_step(rank + 1));
    unfinished_[segment * ranks_.size() + rank] = last - first;
    for (std::size_t step = first; step < last; ++step) {
      const Instance instance = segment * steps_.size() + step;
      pending_[instance] = joint_.predecessor_count(step);
      if (pending_[instance] == 0) events_.push({now, What::ready, instance});
    }
  }

  // Occupies a resource for `duration`, from `now` or from when it becomes free. Returns the end.
  static double take(double& busy_until, double now, double duration) {
    busy_until = std::max(busy_until, now) + duration;
    return busy_until;
  }

  void start(Instance instance, double now) {
    const StepCost& step = step_of(instance);
    Resources& rank = ranks_[step.rank];
    switch (step.kind) {
      case StepKind::send:
        send(instance, now);
        break;
      case StepKind::recv:
        meet(instance, now);
        break;
      case StepKind::reduce:
      case StepKind::copy: {
        const double duration = step.bytes * link_.reduce_seconds_per_byte;
        events_.push({take(rank.processor, now, duration), What::ended, instance});
        break;
      }
      case StepKind::sync:
        arrive(instance, now);
        break;
    }
  }

  bool stays_on_host(const StepCost& step) const {
    return !hosts_.empty() && hosts_[step.rank] == hosts_[steps_[step.partner].rank];
  }
  // Whether the message of a step passes the ports of hosts.
  bool leaves_host(const StepCost& step) const { return !hosts_.empty() && !stays_on_host(step); }
  const LinkCost& link_of(const StepCost& step) const {
    return stays_on_host(step) ? local_link_ : link_;
  }

  void send(Instance instance, double now) {
    const StepCost& step = step_of(instance);
    const LinkCost& link = link_of(step);
    double& port = ranks_[step.rank].port_out;
    if (leaves_host(step)) {
      events_.push({take(port, now, link.message_seconds), What::leaves, instance});
      return;
    }
    const double transfer = step.bytes * link.seconds_per_byte;
    const double copied = copy_through(step, now);
    const double left = take(port, now, link.message_seconds + transfer);
    sent(instance, std::max(left, copied), transfer);
  }

  // Inside a host the processors at both ends copy a message into the link and out of it while it
  // is transferred. Returns when the processor of this step's rank has finished.
  double copy_through(const StepCost& step, double now) {
    if (!stays_on_host(step)) return now;
    return take(ranks_[step.rank].processor, now, step.bytes * link_.reduce_seconds_per_byte);
  }

  void leave(Instance instance, double now) {
    const StepCost& step = step_of(instance);
    const double transfer = step.bytes * link_.seconds_per_byte;
    sent(instance, take(host_ports_[hosts_[step.rank]].out, now, transfer), transfer);
  }

  // At `now` the last byte has left; the first one left `transfer` earlier.
  void sent(Instance instance, double now, double transfer) {
    const StepCost& step = step_of(instance);
    const Instance receive = instance - instance % steps_.size() + step.partner;
    events_.push({now, What::ended, instance});
    events_.push({now - transfer + link_of(step).latency_seconds, What::arrived, receive});
  }

  // A receive continues when it has been posted and the first byte has arrived.
  void meet(Instance receive, double now) {
    if (!flags_[receive]) {
      flags_[receive] = true;
      return;
    }
    const StepCost& step = step_of(receive);
    const LinkCost& link = link_of(step);
    const double transfer = step.bytes * link.seconds_per_byte;
    if (leaves_host(step)) {
      const double in = take(host_ports_[hosts_[step.rank]].in, now, transfer);
      events_.push({in, What::entered, receive});
      return;
    }
    const double copied = copy_through(step, now);
    const double in = take(ranks_[step.rank].port_in, now, link.message_seconds + transfer);
    events_.push({std::max(in, copied), What::ended, receive});
  }

  void enter(Instance receive, double now) {
    double& port = ranks_[step_of(receive).rank].port_in;
    events_.push({take(port, now, link_.message_seconds), What::ended, receive});
  }

  void arrive(Instance instance, double now) {
    const std::size_t segment = instance / steps_.size();
    const std::size_t number = sync_number_[instance % steps_.size()];
    const auto& members = sync_members_[number];
    if (++sync_arrivals_[segment * sync_members_.size() + number] < members.size()) return;
    const double sync_seconds =
        link_.sync_seconds * std::ceil(std::log2(static_cast<double>(members.size())));
    for (const std::int32_t member : members) {
      events_.push({now + sync_seconds, What::ended, segment * steps_.size() + member});
    }
  }

  void end(Instance instance, double now) {
    const std::size_t segment = instance / steps_.size();
    const std::size_t step = instance % steps_.size();
    const auto rank = static_cast<std::size_t>(steps_[step].rank);
    ends_[segment] = std::max(ends_[segment], now);
    for (const std::int32_t successor : joint_.successors_of(step)) {
      const Instance next = segment * steps_.size() + successor;
      if (--pending_[next] == 0) events_.push({now, What::ready, next});
    }
    if (--unfinished_[segment * ranks_.size() + rank] > 0) return;
    if (segment + at_once_ < segments_) open(segment + at_once_, rank, now);
  }

  const JointSchedule& joint_;
  LinkCost link_;
  LinkCost local_link_;
  std::span<const std::int32_t> hosts_;  // Per rank.
  std::vector<Ports> host_ports_;        // Per host.
  std::size_t segments_;
  std::size_t at_once_ = 1;  // Segments that a rank works on at a time.
  std::vector<StepCost> steps_;
  std::vector<std::size_t> sync_number_;                       // Per step, the number of its sync.
  std::map<std::pair<Rank, std::size_t>, std::size_t> syncs_;  // By first rank of team, and index.
  std::vector<std::vector<std::int32_t>> sync_members_;  // Per sync, the step on each of its ranks.
  std::vector<std::size_t> sync_arrivals_;               // Per segment and sync.
  std::vector<Resources> ranks_;
  std::vector<std::int32_t> pending_;    // Per instance, predecessors that have not ended.
  std::vector<bool> flags_;              // Per receive, whether it has been posted or has arrived.
  std::vector<std::size_t> unfinished_;  // Per segment and rank, steps that have not ended.
  std::vector<double> ends_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

// The longest input or output of a rank consists of all chunks; in an all_to_all, of one chunk per
// rank.
double chunk_bytes_of(const Schedule& schedule, const CostQuery& query) {
  const bool personal = schedule.collective == Collective::all_to_all;
  const int chunks = personal ? schedule.rank_count : std::max(schedule.chunk_count, 1);
  return static_cast<double>(query.bytes) / chunks;
}

double seconds_of(const JointSchedule& joint, const CostQuery& query) {
  const int chunk_count = joint.schedules().front().chunk_count;
  const double chunk_bytes = chunk_bytes_of(joint.schedules().front(), query);
  const double segments =
      query.segment_bytes == 0 || chunk_count == 0
          ? 1.0
          : std::max(1.0, std::ceil(chunk_bytes / static_cast<double>(query.segment_bytes)));
  const auto played = static_cast<std::size_t>(std::min(
      segments, static_cast<double>(std::max(kSegmentsPlayed, kSegmentsOfLane * query.lanes))));
  const auto ends = Simulation(joint, query, chunk_bytes / segments, played).run();
  const double last = ends.back();
  const double rest = segments - static_cast<double>(played);
  const std::size_t turn = std::max<std::size_t>(2, query.lanes);
  return rest <= 0 ? last
                   : last + rest * (last - ends[played - 1 - turn]) / static_cast<double>(turn);
}

std::size_t longest_path(const JointSchedule& joint) {
  const JointRun execution = execute(joint);
  std::int32_t messages = 0;
  for (std::size_t step = 0; step < joint.step_count(); ++step) {
    const StepKind kind = joint.step(step).kind;
    const bool counts = kind == StepKind::send || kind == StepKind::sync;
    if (counts) messages = std::max(messages, execution.level[step] + 1);
  }
  return static_cast<std::size_t>(messages);
}

// The bytes that a schedule sends, or touches on other ranks.
double sent_bytes(const Schedule& schedule, double chunk_bytes, int partial_scale) {
  double sum = 0;
  const auto add = [&](const Place& place, bool counts) {
    const int scale = place.slot.buffer == Buffer::partial ? partial_scale : 1;
    if (counts) sum += chunk_bytes * scale;
  };
  for (const Step& step : schedule.steps) {
    const bool sends = step.kind == StepKind::send;
    for (const Place& place : schedule.sources(step)) {
      add(place, sends || place.rank != schedule.rank);
    }
    for (const Place& place : schedule.targets(step)) add(place, place.rank != schedule.rank);
  }
  return sum;
}

}  // namespace

Cost cost(std::span<const Schedule> schedules, const CostQuery& query) {
  if (schedules.empty()) return {};
  STRETTO_CHECK(query.hosts.empty() || query.hosts.size() == schedules.size(),
                "{} hosts of {} ranks", query.hosts.size(), schedules.size());
  const JointSchedule joint(schedules);
  Cost result{.seconds = seconds_of(joint, query), .steps = longest_path(joint)};
  const double chunk_bytes = chunk_bytes_of(schedules.front(), query);
  for (const Schedule& schedule : schedules) {
    const double sent = std::round(sent_bytes(schedule, chunk_bytes, query.partial_scale));
    result.sent_bytes_max = std::max(result.sent_bytes_max, static_cast<std::size_t>(sent));
  }
  return result;
}

Cost cost(const Algorithm& algorithm, int rank_count, const CostQuery& query) {
  return cost(algorithm.build_all(rank_count, 0, query.hosts), query);
}

}  // namespace stretto::schedule
