// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/timeline.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"

namespace stretto {
namespace {

constexpr std::size_t kMostEvents = 100'000;
constexpr int kForwardTrack = 1;
constexpr int kBackwardTrack = 2;
constexpr int kBucketTrack = 3;
constexpr double kMicroseconds = 1e6;  // In a second.

}  // namespace

void Timeline::add_event(std::string name, int track, double begin_us, double duration_us) {
  if (events_.size() == kMostEvents) return;
  events_.push_back({std::move(name), track, begin_us, duration_us});
}

void Timeline::add(const StepStatistics& statistics, const reducer::BucketPlan& plan) {
  const double begin = seconds(statistics.begin.time_since_epoch()) * kMicroseconds;
  if (statistics.forward_seconds > 0) {
    add_event(fmt::format("step {}: forward", statistics.step), kForwardTrack,
              seconds(statistics.forward_begin.time_since_epoch()) * kMicroseconds,
              statistics.forward_seconds * kMicroseconds);
  }
  add_event(fmt::format("step {}: backward", statistics.step), kBackwardTrack, begin,
            statistics.backward_seconds * kMicroseconds);
  for (std::size_t b = 0; b < plan.size() && b < statistics.launch_seconds.size(); ++b) {
    const double launch = statistics.launch_seconds[b] * kMicroseconds;
    add_event(fmt::format("step {}: bucket {} of {} gradients", statistics.step, b,
                          plan[b].gradients.size()),
              kBucketTrack, begin + launch, statistics.end_seconds[b] * kMicroseconds - launch);
  }
}

std::string Timeline::json() const {
  const int rank = rank_.value();
  std::string text = R"({"traceEvents":[)";
  text += fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"rank {}"}}}})",
                      rank, rank);
  constexpr std::array kTracks = {std::pair{kForwardTrack, "forward"},
                                  std::pair{kBackwardTrack, "backward"},
                                  std::pair{kBucketTrack, "buckets"}};
  for (const auto& [track, name] : kTracks) {
    text += fmt::format(
        R"(,{{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank,
        track, name);
  }
  for (const Event& event : events_) {
    text += fmt::format(R"(,{{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f}}})",
                        rank, event.track, event.name, event.begin_us, event.duration_us);
    text += '\n';
  }
  return text + "]}\n";
}

void Timeline::write(const std::string& path) const {
  const std::string text = json();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "we"),
                                                             &std::fclose);
  if (file == nullptr) throw SystemError(system_status("cannot write " + path));
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) {
    throw SystemError(system_status("cannot write " + path));
  }
}

}  // namespace stretto
