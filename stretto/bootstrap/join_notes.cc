// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/join_notes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/host_name.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/bootstrap/join_failure.h"

namespace stretto::bootstrap {
namespace {

// Time for finding out who is missing, which happens after the deadline.
constexpr Duration kLook = std::chrono::milliseconds(500);
// How long the store may take to notice that a rank has ended.
constexpr Duration kNoticed = std::chrono::milliseconds(500);
// Processes that are started together usually start within this time.
constexpr Duration kLateComers = std::chrono::seconds(1);
// Time for the report of a rank that cannot join.
constexpr Duration kLastWords = std::chrono::seconds(2);

std::string key_of(const std::string& name, int rank) { return fmt::format("{}/{}", name, rank); }

// Set by rank 0 when all have arrived.
constexpr const char* kAllArrived = "all-arrived";

// Set by rank 0 when all have joined; the others wait for it at the end.
constexpr const char* kAllJoined = "all-joined";

// The key that is set when the others need nothing more of a rank to join.
std::string last_note_of(int rank) { return rank == 0 ? kAllJoined : key_of("joined", rank); }

// This process: "node04 pid 8812".
std::string this_process() { return fmt::format("{} pid {}", host_name(), ::getpid()); }

std::string self_name(int rank) { return fmt::format("rank {} ({})", rank, this_process()); }

// A test to run on the host of a rank that does not come.
std::string test_of(const std::string& server) {
  return server.empty() ? "" : fmt::format("; test there: stretto doctor --to {}", server);
}

}  // namespace

Status JoinNotes::arrive() {
  const Status ended(StatusCode::peer_lost,
                     fmt::format("{} ended while the job was starting", self_name(options_.rank)),
                     Rank(options_.rank));
  STRETTO_ASSIGN_OR_RETURN(watch_, store_->watch(std::string(kJoinFailureKey),
                                                 {.value = encode_join_failure(ended),
                                                  .revoked_by = last_note_of(options_.rank)},
                                                 options_.deadline));
  placed_ = true;
  // The first process to arrive has the rank. The number makes every arrival's text different.
  STRETTO_ASSIGN_OR_RETURN(const auto number, store_->add("arrivals", 1, options_.deadline));
  const std::string own = fmt::format("{} {}", number, this_process());
  STRETTO_ASSIGN_OR_RETURN(const auto first, store_->compare_set(key_of("arrived", options_.rank),
                                                                 "", own, options_.deadline));
  if (first == own) {
    log(LogLevel::info, "this rank has come to {}", store_->describe());
    return {};
  }
  STRETTO_RETURN_IF_ERROR(withdraw());
  const std::string text = fmt::format(
      "{} has come to {} as rank {}, but {} has come as that rank before it", this_process(),
      store_->describe(), options_.rank, printable(first.substr(first.find(' ') + 1)));
  // A hint for ranks that wait for the rank that this process was meant to be.
  STRETTO_RETURN_IF_ERROR(store_->set(kRefusedPeerKey, text, options_.deadline));
  return Status(StatusCode::refused, text);
}

Status JoinNotes::withdraw() {
  placed_ = false;
  return watch_->revoke(options_.deadline);
}

Status JoinNotes::failure_in_store() const {
  const auto failure = store_->look_up(kJoinFailureKey, options_.deadline);
  return failure.ok() && failure.value() ? decode_join_failure(*failure.value()) : failure.status();
}

Status JoinNotes::finish() { return tell("joined", ""); }

Status JoinNotes::abandon(const Status& why) {
  if (!placed_) return why;
  // When a rank ends, this rank sees the connection end first. A moment later the store knows of
  // it, and why.
  const Deadline later =
      why.code() == StatusCode::peer_lost ? Deadline::after(kNoticed) : Deadline(TimePoint::min());
  while (look().ok() && !later.passed()) std::this_thread::sleep_for(kNoticed / 20);
  if (!failure_.ok()) return failure_;
  const Status told(why.code(),
                    fmt::format("{} could not join: {}", self_name(options_.rank), why.message()),
                    why.rank() ? why.rank() : Rank(options_.rank));
  const std::string own = encode_join_failure(told);
  const Result<std::string> first =
      store_->compare_set(kJoinFailureKey, "", own, Deadline::after(kLastWords));
  if (!first.ok() || first.value() == own) return why;
  return decode_join_failure(first.value());
}

WaitLimit JoinNotes::limit() const {
  return {options_.deadline, [this] { return check_failures(); }};
}

Status JoinNotes::look() const {
  if (watch_ == nullptr || !failure_.ok()) return failure_;
  const Result<std::optional<std::string>> failure = watch_->look();
  const StatusCode code = failure.status().code();
  if (code == StatusCode::peer_lost) {
    failure_ = status_of(code, "{} has ended while the job was starting", store_->describe());
  } else if (code == StatusCode::system) {
    // The system reports an error of a connection only once; a second look would see an ordinary
    // end.
    failure_ = status_of(code, "{}: {}", store_->describe(), failure.status().message());
  } else if (failure.ok() && failure.value()) {
    failure_ = decode_join_failure(*failure.value());
    told_ = true;
  }
  return failure_;
}

Status JoinNotes::check_failures() const {
  const Status told = look();
  return told.ok() && own_failure_ ? own_failure_() : told;
}

// Prefers the failure of the join, if there is one, to `status`, by which it was noticed.
Status JoinNotes::explain(const Status& status) const {
  if (status.ok()) return {};
  const Status told = look();
  return told.ok() ? status : told;
}

Status JoinNotes::tell(const std::string& name, const std::string& value) {
  return explain(store_->set(key_of(name, options_.rank), value, limit()));
}

Result<std::string> JoinNotes::get(const std::string& key) const {
  Result<std::string> value = store_->get(key, limit());
  if (value.ok()) return value;
  return explain(value.status());
}

Result<std::string> JoinNotes::get(const std::string& name, int rank) const {
  STRETTO_ASSIGN_OR_RETURN(std::vector<std::string> notes, get_all(name, std::array{rank}));
  return std::move(notes.front());
}

Result<std::vector<std::string>> JoinNotes::get_all(const std::string& name,
                                                    std::span<const int> ranks) const {
  if (ranks.empty()) return std::vector<std::string>();
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(key_of(name, rank));
  TimePoint reminder = Clock::now() + options_.reminder;
  const WaitLimit reminding(options_.deadline, [&] {
    if (Clock::now() >= reminder) {
      log(LogLevel::warning, "waiting {}", describe_missing(name, ranks));
      reminder = Clock::now() + options_.reminder;
    }
    return check_failures();
  });
  Result<std::vector<std::string>> values = store_->multi_get(keys, reminding);
  if (values.ok()) return values;
  if (values.status().code() == StatusCode::timeout && options_.deadline.passed()) {
    return Status(StatusCode::timeout, "waited " + describe_missing(name, ranks));
  }
  return explain(values.status());
}

Result<std::vector<std::string>> JoinNotes::exchange(const std::string& name,
                                                     const std::string& own) {
  STRETTO_RETURN_IF_ERROR(tell(name, own));
  return get_all(name, all_ranks());
}

Result<std::string> JoinNotes::get_changed(const std::string& key, const std::string& old,
                                           const std::string& why, Deadline until) const {
  constexpr Duration kLongestNap = std::chrono::milliseconds(200);
  TimePoint reminder = Clock::now() + options_.reminder;
  for (Duration nap = kLongestNap / 20;; nap = std::min(2 * nap, kLongestNap)) {
    Result<std::string> value = get(key);
    if (!value.ok() || *value != old) return value;
    if (until.passed()) return Status(StatusCode::timeout, "nothing has changed in time");
    if (Clock::now() >= reminder) {
      log(LogLevel::warning, "waiting {} s: {}", waited(), why);
      reminder = Clock::now() + options_.reminder;
    }
    std::this_thread::sleep_for(nap);
  }
}

std::vector<int> JoinNotes::all_ranks() const {
  std::vector<int> all(static_cast<std::size_t>(options_.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Status JoinNotes::wait_for_arrivals() {
  if (options_.rank > 0) return get(kAllArrived, 0).status();
  STRETTO_RETURN_IF_ERROR(get_all("arrived", all_ranks()).status());
  return tell(kAllArrived, "");
}

Status JoinNotes::end_join() {
  STRETTO_RETURN_IF_ERROR(get_all("joined", all_ranks()).status());
  return explain(store_->set(kAllJoined, "", limit()));
}

Status JoinNotes::wait_for_join() const { return get(kAllJoined).status(); }

void JoinNotes::wait_for_late_ranks() const {
  const WaitLimit limit = WaitLimit(options_.deadline).within(kLateComers);
  while (placed_ && !limit.passed()) {
    std::vector<int> missing = ranks_without("arrived", all_ranks(), Deadline::after(kLook));
    // The rank that failed need not learn of it.
    std::erase_if(missing, [this](int rank) { return failure_.rank() == Rank(rank); });
    if (missing.empty()) return;
    std::this_thread::sleep_for(kNoticed / 20);
  }
}

Status JoinNotes::wait_for_end() const {
  // No rank sets this key.
  const Status ended = explain(store_->wait(std::array{std::string("ended")}, limit()));
  return ended.code() == StatusCode::peer_lost && !told_ ? Status() : ended;
}

// Those of `ranks`, except this one, that have not written the note.
std::vector<int> JoinNotes::ranks_without(const std::string& name, std::span<const int> ranks,
                                          Deadline deadline) const {
  std::vector<int> missing;
  for (const int r : ranks) {
    if (r == options_.rank) continue;
    const std::array key = {key_of(name, r)};
    const Result<bool> there = store_->check(key, deadline);
    // A store that does not answer says nothing about the ranks.
    if (there.ok() && !there.value()) missing.push_back(r);
  }
  return missing;
}

// "15/300": the seconds for which this rank has tried to join, and its limit.
std::string JoinNotes::waited() const {
  const std::string so_far = fmt::format("{:.0f}", seconds(Clock::now() - start_));
  const TimePoint end = options_.deadline.time();
  return end == TimePoint::max() ? so_far : fmt::format("{}/{:.0f}", so_far, seconds(end - start_));
}

// Says who is missing, at which store they were to arrive, and how long this rank has waited.
std::string JoinNotes::describe_missing(const std::string& name, std::span<const int> ranks) const {
  const std::string waited_seconds = waited();
  const Deadline look = Deadline::after(kLook);
  std::vector<int> missing = ranks_without("arrived", all_ranks(), look);
  if (!missing.empty()) {
    return fmt::format(
        "{} s for {} of {} ranks: {} never came. All meet in {}, which their hosts must be able to "
        "reach{}{}",
        waited_seconds, missing.size(), options_.size, fmt::join(missing, ", "), store_->describe(),
        test_of(store_->server()), refused_peer());
  }
  // Only of `ranks`: the other ranks may not write such a note.
  missing = ranks_without(name, ranks, look);
  if (missing.empty()) missing.push_back(ranks.front());
  return fmt::format("{} s for {} of {} ranks: {} came to {}, but did not go on from there",
                     waited_seconds, missing.size(), options_.size, fmt::join(missing, ", "),
                     store_->describe());
}

std::string JoinNotes::refused_peer() const {
  const auto refused = store_->look_up(kRefusedPeerKey, Deadline::after(kLook));
  if (!refused.ok() || !refused.value()) return "";
  return ". Perhaps it was one of them that was refused: " + printable(*refused.value());
}

Status report_end(Store& store, int rank, std::string_view how) {
  const Deadline deadline = Deadline::after(kLastWords);
  const std::array key = {last_note_of(rank)};
  const Result<bool> joined = store.check(key, deadline);
  if (!joined.ok() || joined.value()) return joined.status();
  const Status ended(StatusCode::peer_lost,
                     fmt::format("rank {} ended while the job was starting: {}", rank, how),
                     Rank(rank));
  return store.compare_set(kJoinFailureKey, "", encode_join_failure(ended), deadline).status();
}

Result<bool> have_all_joined(Store& store, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(key_of("joined", rank));
  return store.check(keys, Deadline::after(kLastWords));
}

}  // namespace stretto::bootstrap
