// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/timeline.h"

#include <algorithm>
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
  // Events of one track must not overlap: each bucket takes the first track that is free.
  std::vector<double> free_at;
  for (std::size_t b = 0; b < plan.size() && b < statistics.launch_seconds.size(); ++b) {
    const double launch = statistics.launch_seconds[b];
    const double end = statistics.end_seconds[b];
    if (launch < 0) continue;  // Left out.
    std::size_t track = 0;
    while (track < free_at.size() && free_at[track] > launch) ++track;
    if (track == free_at.size()) free_at.push_back(0);
    free_at[track] = end;
    add_event(fmt::format("step {}: bucket {} of {} gradients", statistics.step, b,
                          plan[b].gradients.size()),
              kBucketTrack + static_cast<int>(track), begin + launch * kMicroseconds,
              (end - launch) * kMicroseconds);
  }
  bucket_tracks_ = std::max(bucket_tracks_, free_at.size());
}

std::string Timeline::json() const {
  const int rank = rank_.value();
  std::string text = R"({"traceEvents":[)";
  text += fmt::format(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"rank {}"}}}})",
                      rank, rank);
  std::vector<std::string> tracks = {"forward", "backward"};  // From kForwardTrack on.
  tracks.insert(tracks.end(), bucket_tracks_, "buckets");
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    text += fmt::format(
        R"(,{{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank,
        kForwardTrack + static_cast<int>(i), tracks[i]);
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
