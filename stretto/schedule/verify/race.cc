// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/parts.h"

#include <string>
#include <utility>
#include <vector>

#include "stretto/schedule/print.h"
#include "stretto/schedule/touch.h"

namespace stretto::schedule {
namespace {

// So many runs that the last one uses the scratch set of the first one again.
constexpr std::int32_t kRuns = kScratchSets + 1;

Buffer buffer_of(Location location) { return static_cast<Buffer>((location >> 32) & 3); }
std::int32_t rank_of(Location location) { return static_cast<std::int32_t>(location >> 34); }
std::int32_t index_of(Location location) {
  return static_cast<std::int32_t>(location & 0xffffffffu);
}
bool is_callers(Location location) {
  return buffer_of(location) == Buffer::input || buffer_of(location) == Buffer::output;
}

std::string text(Location location) {
  const char* names[] = {"input chunk", "output chunk", "raw slot", "partial slot"};
  return fmt::format("{} {} of rank {}", names[static_cast<int>(buffer_of(location))],
                     index_of(location), rank_of(location));
}

// The accesses of one rank between two of its syncs.
using Interval = std::vector<Touch>;

// The intervals of each rank of the team.
std::vector<std::vector<Interval>> cut_at_syncs(std::span<const Schedule> schedules,
                                                std::span<const Rank> team) {
  std::vector<std::vector<Interval>> ranks;
  for (const Rank member : team) {
    const Schedule& schedule = schedules[static_cast<std::size_t>(member)];
    auto& intervals = ranks.emplace_back(1);
    for (const Step& step : schedule.steps) {
      if (step.kind == StepKind::sync) {
        intervals.emplace_back();
      } else {
        append_touches(schedule, step, intervals.back());
      }
    }
  }
  return ranks;
}

// The ranks that have touched one place since the last sync. Remembering two readers is enough: a
// writer that is one of them still conflicts with the other.
class PlaceHistory {
 public:
  // The rank that this touch races with, or -1.
  std::int32_t touch(std::int32_t interval, std::int32_t rank, const Touch& touch) {
    if (interval != interval_) *this = PlaceHistory{interval};
    const std::int32_t other = conflict(rank, touch);
    if (touch.takes) taker_ = rank;
    if (touch.writes) {
      writer_ = rank;
    } else if (reader_ == kNobody) {
      reader_ = rank;
    } else if (reader_ != rank) {
      other_reader_ = rank;
    }
    return other;
  }

  PlaceHistory() = default;

 private:
  static constexpr std::int32_t kNobody = -1;

  explicit PlaceHistory(std::int32_t interval) : interval_(interval) {}

  std::int32_t conflict(std::int32_t rank, const Touch& touch) const {
    if (writer_ != kNobody && writer_ != rank) return writer_;
    if (touch.takes && taker_ != kNobody && taker_ != rank) return taker_;
    if (!touch.writes) return kNobody;
    return reader_ != kNobody && reader_ != rank ? reader_ : other_reader_;
  }

  std::int32_t interval_ = -1;
  std::int32_t writer_ = kNobody;
  std::int32_t reader_ = kNobody;
  std::int32_t other_reader_ = kNobody;  // Another rank than reader_.
  std::int32_t taker_ = kNobody;         // It is a reader, too.
};

// Checks one team. Ranks of different teams share no memory.
class RaceCheck {
 public:
  RaceCheck(std::span<const Schedule> schedules, std::span<const Rank> team,
            std::int32_t scratch_sets)
      : scratch_sets_(scratch_sets),
        team_(team),
        ranks_(cut_at_syncs(schedules, team)),
        numbers_(all_locations(ranks_)) {
    histories_.resize(numbers_.size() * kRuns);
  }

  // Checks interval by interval over all ranks, in the order of time. The last interval of a run is
  // also the first one of the next run.
  Status run() {
    const auto syncs = static_cast<std::int32_t>(ranks_.front().size()) - 1;
    for (std::int32_t now = 0; now <= kRuns * syncs; ++now) {
      for (std::int32_t run = 0; run < kRuns; ++run) {
        const std::int32_t interval = now - run * syncs;
        if (interval < 0 || interval > syncs) continue;
        STRETTO_RETURN_IF_ERROR(check_interval(run, interval, now));
      }
    }
    return {};
  }

  // Without a sync before (after) its access, a rank may touch a buffer before its owner has
  // entered (after it has left).
  Status check_callers() const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const auto& intervals = ranks_[i];
      const std::int32_t rank = team_[i].value();
      for (const Interval* edge : {&intervals.front(), &intervals.back()}) {
        for (const Touch& touch : *edge) {
          if (rank_of(touch.location) == rank || !is_callers(touch.location)) continue;
          return refusal("rank {} touches {} {}: a sync is missing", rank, text(touch.location),
                         edge == &intervals.front() ? "before that rank may have entered"
                                                    : "after that rank may have left");
        }
      }
    }
    return {};
  }

 private:
  static LocationNumbers all_locations(const std::vector<std::vector<Interval>>& ranks) {
    std::vector<Location> locations;
    for (const auto& intervals : ranks) {
      for (const Interval& interval : intervals) {
        for (const Touch& touch : interval) locations.push_back(touch.location);
      }
    }
    return LocationNumbers(std::move(locations));
  }

  Status check_interval(std::int32_t run, std::int32_t interval, std::int32_t now) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::int32_t rank = team_[i].value();
      for (const Touch& touch : ranks_[i][interval]) {
        // Different runs work on different segments of callers' buffers.
        const std::int32_t set = is_callers(touch.location) ? run : run % scratch_sets_;
        PlaceHistory& history = histories_[numbers_.number_of(touch.location) * kRuns + set];
        const std::int32_t other = history.touch(now, rank, touch);
        if (other < 0) continue;
        return refusal("race: rank {} {} {} while rank {} {} it, after sync {}{}", rank,
                       touch.writes  ? "writes"
                       : touch.takes ? "takes"
                                     : "reads",
                       text(touch.location), other,
                       touch.writes || touch.takes ? "touches" : "writes", interval,
                       run == 0 ? "" : " of a later run of the list");
      }
    }
    return {};
  }

  std::int32_t scratch_sets_;
  std::span<const Rank> team_;
  std::vector<std::vector<Interval>> ranks_;  // Per rank of the team.
  LocationNumbers numbers_;
  std::vector<PlaceHistory> histories_;
};

}  // namespace

Status check_races(std::span<const Schedule> schedules, std::int32_t scratch_sets) {
  for (const Schedule& schedule : schedules) {
    // Check each team once, at its first rank.
    if (schedule.team.empty() || schedule.team.front() != schedule.rank) continue;
    RaceCheck check(schedules, schedule.team, scratch_sets);
    STRETTO_RETURN_IF_ERROR(check.check_callers());
    STRETTO_RETURN_IF_ERROR(check.run());
  }
  return {};
}

}  // namespace stretto::schedule
