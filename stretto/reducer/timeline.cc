// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/timeline.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/refuse.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/communicator/clock_offset.h"

namespace stretto {
namespace {

constexpr std::size_t kMostKept = 100'000;  // Steps, and buckets.
constexpr int kForwardTrack = 1;
constexpr int kBackwardTrack = 2;
constexpr int kBucketTrack = 3;
constexpr double kMicroseconds = 1e6;  // In a second.
constexpr double kMicrosecondsInMillisecond = 1e3;

std::string in_envelope(std::string_view events) {
  return fmt::format("{{\"traceEvents\":[{}]}}\n", events);
}

void write_file(const std::string& path, const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "we"),
                                                             &std::fclose);
  if (file == nullptr) throw SystemError(system_status("cannot write " + path));
  // Flush here to see errors: fclose() by the pointer's deleter reports none.
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    throw SystemError(system_status("cannot write " + path));
  }
}

}  // namespace

void Timeline::add_event(std::string name, int track, double begin_us, double duration_us) {
  events_.push_back({std::move(name), track, begin_us, duration_us});
}

void Timeline::add(const StepStatistics& statistics) {
  // Counted by steps and buckets, which are equal on all ranks and which write_merged() compares;
  // the number of passes is not.
  if (steps_ >= kMostKept || buckets_ >= kMostKept) return;
  ++steps_;
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
  for (std::size_t b = 0; b < statistics.bucket_gradients.size(); ++b) {
    const double launch = statistics.launch_seconds[b];
    const double end = statistics.end_seconds[b];
    if (launch < 0) continue;  // Left out.
    ++buckets_;
    std::size_t track = 0;
    while (track < free_at.size() && free_at[track] > launch) ++track;
    if (track == free_at.size()) free_at.push_back(0);
    free_at[track] = end;
    add_event(fmt::format("step {}: bucket {} of {} gradients", statistics.step, b,
                          statistics.bucket_gradients[b]),
              kBucketTrack + static_cast<int>(track), begin + launch * kMicroseconds,
              (end - launch) * kMicroseconds);
  }
  bucket_tracks_ = std::max(bucket_tracks_, free_at.size());
}

std::string Timeline::events_json(std::string_view label) const {
  const int rank = rank_.value();
  std::string text = fmt::format(
      R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}})", rank, label);
  std::vector<std::string> tracks = {"forward", "backward"};  // From kForwardTrack on.
  tracks.insert(tracks.end(), bucket_tracks_, "buckets");
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    text += fmt::format(
        R"(,{{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank,
        kForwardTrack + static_cast<int>(i), tracks[i]);
  }
  for (const Event& event : events_) {
    text += fmt::format(R"(,{{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f})",
                        rank, event.track, event.name, event.begin_us, event.duration_us);
    if (event.waited_for_ms > 0) {
      text += fmt::format(R"(,"args":{{"waited_for_ms":{:.3f}}})", event.waited_for_ms);
    }
    text += "}\n";
  }
  return text;
}

std::string Timeline::json() const {
  return in_envelope(events_json(fmt::format("rank {}", rank_.value())));
}

void Timeline::write(const std::string& path) const { write_file(path, json()); }

// The wait for the last rank that launches a bucket begins when the last but one has launched it.
double Timeline::find_waits(Communicator& comm) {
  std::vector<Event*> buckets;
  std::vector<double> launches;
  for (Event& event : events_) {
    if (event.track < kBucketTrack) continue;
    buckets.push_back(&event);
    launches.push_back(event.begin_us);
  }
  const auto counts = communicator::all_gather_value(comm, buckets.size(), std::nullopt);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == counts.front()) continue;
    refuse("timelines of ranks differ: rank 0 has {} buckets, rank {} has {}", counts.front(), r,
           counts[r]);
  }
  std::vector<double> last = launches;
  comm.all_reduce(last, {.op = ReduceOp::max}).wait();
  // If several ranks are equally late, none is blamed.
  std::vector<std::uint32_t> late(launches.size());
  for (std::size_t i = 0; i < launches.size(); ++i) late[i] = launches[i] == last[i] ? 1 : 0;
  std::vector<double> last_but_one = launches;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (late[i] == 1) last_but_one[i] = std::numeric_limits<double>::lowest();
  }
  comm.all_reduce(last_but_one, {.op = ReduceOp::max}).wait();
  comm.all_reduce(late).wait();
  double sum_ms = 0;
  for (std::size_t i = 0; i < launches.size() && comm.size() > 1; ++i) {
    if (launches[i] != last[i] || late[i] > 1) continue;
    buckets[i]->waited_for_ms = (last[i] - last_but_one[i]) / kMicrosecondsInMillisecond;
    sum_ms += buckets[i]->waited_for_ms;
  }
  return sum_ms;
}

void Timeline::write_merged(Communicator& comm, const std::string& path) const {
  const ClockOffset clock =
      measure_clock_offsets(comm)[static_cast<std::size_t>(comm.rank().value())];
  Timeline own = *this;
  for (Event& event : own.events_) event.begin_us += seconds(clock.offset) * kMicroseconds;
  const double waited_ms = own.find_waits(comm);
  const std::string events = own.events_json(fmt::format(
      "rank {}: the others waited {:.1f} ms for it; its clock is known within {:.3f} ms",
      rank_.value(), waited_ms, seconds(clock.uncertainty) * 1e3));
  const std::vector<ByteVector> all = gather_bytes(comm, std::as_bytes(std::span(events)), 0,
                                                   {.limit_bytes = std::size_t{1} << 30});
  std::string text;
  for (const ByteVector& of_rank : all) {
    if (!text.empty()) text += ',';
    text.append(reinterpret_cast<const char*>(of_rank.data()), of_rank.size());
  }
  if (comm.rank() == 0) write_file(path, in_envelope(text));
}

}  // namespace stretto
