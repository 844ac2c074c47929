// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/outcome.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/cgroup.h"

namespace stretto::launch {
namespace {

constexpr Duration kNoticeDelay = std::chrono::milliseconds(100);

std::string_view meaning(int signal) {
  switch (signal) {
    case SIGKILL:
      return "killed from outside, possibly by the out-of-memory killer";
    case SIGSEGV:
      return "a crash: access to memory it does not have";
    case SIGBUS:
      return "a crash: memory or a mapped file that is not there, such as a full /dev/shm";
    case SIGILL:
      return "a crash: an instruction this processor does not have";
    case SIGFPE:
      return "a crash: division by zero";
    case SIGABRT:
      return "it gave up: an uncaught exception or a failed assertion";
    case SIGXFSZ:
      return "it wrote more than the limit on the size of files allows: see `ulimit -f`";
    case SIGXCPU:
      return "it reached the limit on processor time: see `ulimit -t`";
    default:
      return {};
  }
}

// The signal that killed the rank or, by its exit code as a shell sets it, the program that the
// rank had started; 0 if none. SIGABRT does not count, because a program that does not catch the
// error about a lost peer ends by it, too.
int killing_signal(const RankOutcome& outcome) {
  constexpr int kForce[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGXFSZ, SIGXCPU};
  const int signal = outcome.exit_status() - 128;
  return std::ranges::count(kForce, signal) > 0 ? signal : 0;
}

bool was_sent(const RankOutcome& outcome, int signal) {
  return std::ranges::count(outcome.signals_sent, signal) > 0;
}

std::string describe_note(const RankOutcome& outcome) {
  if (!outcome.last_note || outcome.last_note->text.empty()) return {};
  const double age = std::max(0.0, seconds(outcome.ended - outcome.last_note->written));
  return fmt::format("; its last operation was {}, begun {:.1f} s before", outcome.last_note->text,
                     age);
}

std::string rank_name(const RankOutcome& outcome) {
  if (!outcome.starter.empty()) return outcome.starter;
  return fmt::format("rank {}{}{}", outcome.rank, outcome.host.empty() ? "" : " on ", outcome.host);
}

// "rank 2: exit code 1, after it had been told to end, 2.0 s later; its last operation was ...";
// `first` may be null.
std::string describe_other(const RankOutcome& other, const RankOutcome* first) {
  if (!other.has_ended()) return fmt::format("stretto run: {} has not ended\n", rank_name(other));
  std::string text = fmt::format("stretto run: {}: {}", rank_name(other),
                                 other.failed() ? describe_end(other) : "ended well");
  if (other.told_to_end && !was_sent(other, other.signal)) {
    text += ", after it had been told to end";
  }
  if (first != nullptr) {
    const double later = seconds(other.ended - first->ended);
    text += fmt::format(", {:.1f} s {}", std::abs(later), later < 0 ? "earlier" : "later");
  }
  return text + describe_note(other) + "\n";
}

nlohmann::json to_json(const RankOutcome& outcome) {
  nlohmann::json json{{"rank", outcome.rank},     {"pid", nullptr},
                      {"exit_code", nullptr},     {"signal", nullptr},
                      {"seconds", nullptr},       {"told_to_end", outcome.told_to_end},
                      {"last_operation", nullptr}};
  if (outcome.pid > 0) json["pid"] = outcome.pid;
  if (outcome.has_ended()) json["seconds"] = seconds(outcome.ended - outcome.started);
  if (outcome.signal != 0) {
    json["signal"] = signal_name(outcome.signal);
  } else if (outcome.has_ended()) {
    json["exit_code"] = outcome.exit_code;
  }
  if (!outcome.host.empty()) json["host"] = outcome.host;
  if (!outcome.starter.empty()) json["starter"] = outcome.starter;
  if (!outcome.lost.empty()) json["lost"] = outcome.lost;
  if (outcome.restarts > 0) json["restarts"] = outcome.restarts;
  if (outcome.last_note) json["last_operation"] = outcome.last_note->text;
  return json;
}

// Returns the number behind "oom_kill " in a file of control group counters.
std::optional<long> read_counter(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  long value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

const RankOutcome* JobOutcome::first_failure() const {
  const RankOutcome* first = nullptr;
  for (const RankOutcome& outcome : ranks) {
    if (outcome.failed() && (first == nullptr || outcome.ended < first->ended)) first = &outcome;
  }
  if (first == nullptr || killing_signal(*first) != 0) return first;
  const RankOutcome* cause = first;
  for (const RankOutcome& outcome : ranks) {
    const bool could_be_cause = killing_signal(outcome) != 0 && !outcome.told_to_end &&
                                outcome.ended - first->ended <= kNoticeDelay;
    if (could_be_cause && (cause == first || outcome.ended < cause->ended)) cause = &outcome;
  }
  return cause;
}

int JobOutcome::exit_status() const {
  if (launcher_status != 0) return launcher_status;
  if (time_limit_reached) return kTimeLimitStatus;
  const RankOutcome* first = first_failure();
  return first == nullptr ? 0 : first->exit_status();
}

void RankOutcome::note_end(const RankEvent& event) {
  constexpr int kHostLost = 255;  // The exit code of ssh in this case.
  ended = std::max(event.at, started);
  last_note = event.note;
  (event.kind == RankEvent::Kind::killed ? signal : exit_code) = event.number;
  if (event.kind != RankEvent::Kind::lost) return;
  exit_code = kHostLost;
  lost = event.text;
}

std::string describe_end(const RankOutcome& outcome) {
  if (!outcome.lost.empty()) return outcome.lost;
  const int signal = outcome.signal != 0 ? outcome.signal : killing_signal(outcome);
  const std::string code = fmt::format("exit code {}", outcome.exit_code);
  if (signal == 0) return code;
  const std::string_view why =
      was_sent(outcome, signal) ? "sent by this launcher" : meaning(signal);
  const std::string text = signal_name(signal) + (why.empty() ? "" : fmt::format(" ({})", why));
  return outcome.signal != 0 ? text : fmt::format("{}, by which a shell reports {}", code, text);
}

std::string obituary_of(const RankOutcome& outcome, std::optional<long> out_of_memory_kills) {
  const std::string note = describe_note(outcome);
  if (!outcome.lost.empty()) return outcome.lost + note;
  if (!outcome.failed()) return "ended with exit code 0 without leaving the job" + note;
  if (outcome.signal == 0) return "ended with " + describe_end(outcome) + note;
  std::string_view why = meaning(outcome.signal);
  if (was_sent(outcome, outcome.signal)) {
    why = "sent by its launcher";
  } else if (outcome.signal == SIGKILL && out_of_memory_kills.value_or(0) > 0) {
    why = "likely out of memory: the oom_kill count of its control group has risen";
  } else if (outcome.signal == SIGKILL) {
    why =
        out_of_memory_kills ? "from outside" : "from outside, possibly by the out-of-memory killer";
  }
  return fmt::format("killed by {}{}{}", signal_name(outcome.signal),
                     why.empty() ? "" : fmt::format(" ({})", why), note);
}

std::string restart_notice(const RankOutcome& outcome, int restart, int restarts) {
  return fmt::format("{} failed: {}{}; it is started again (restart {} of {})", rank_name(outcome),
                     describe_end(outcome), describe_note(outcome), restart, restarts);
}

std::string report(const JobOutcome& outcome) {
  std::string text;
  if (outcome.time_limit_reached) {
    text += fmt::format("stretto run: the job was ended because it took longer than {:g} s\n",
                        seconds(outcome.time_limit));
  }
  if (outcome.ended_by != 0) {
    text += fmt::format("stretto run: the job was ended because this launcher was sent {}\n",
                        signal_name(outcome.ended_by));
  }
  const RankOutcome* first = outcome.first_failure();
  if (first == nullptr) return text;
  // A rank that ended because it was told to is not the cause.
  if (first->told_to_end) first = nullptr;
  if (first != nullptr) {
    text += fmt::format("stretto run: {} failed first: {}{}, {:.1f} s after its start{}\n",
                        rank_name(*first), describe_end(*first),
                        first->pid > 0 ? fmt::format("; pid {}", first->pid) : std::string(),
                        seconds(first->ended - first->started), describe_note(*first));
  }
  if (outcome.out_of_memory_kills > 0) {
    text += fmt::format(
        "stretto run: the out-of-memory killer has struck in this control group (oom_kill +{})\n",
        outcome.out_of_memory_kills);
  }
  for (const RankOutcome& other : outcome.ranks) {
    if (&other != first) text += describe_other(other, first);
  }
  return text;
}

std::string report_json(const JobOutcome& outcome) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankOutcome& rank : outcome.ranks) ranks.push_back(to_json(rank));
  const RankOutcome* first = outcome.first_failure();
  nlohmann::json json{{"exit_status", outcome.exit_status()},
                      {"first_failure", nullptr},
                      {"time_limit_reached", outcome.time_limit_reached},
                      {"ended_by", nullptr},
                      {"out_of_memory_kills", outcome.out_of_memory_kills},
                      {"ranks", ranks}};
  if (outcome.ended_by != 0) json["ended_by"] = signal_name(outcome.ended_by);
  if (first != nullptr && !first->told_to_end) json["first_failure"] = first->rank;
  // Host names come from the user and need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<long> out_of_memory_kills() {
  for (const auto& [version, file] : {std::pair(CgroupVersion::second, "/memory.events"),
                                      std::pair(CgroupVersion::first, "/memory.oom_control")}) {
    for (const std::string& folder : cgroup_folders(version, "memory")) {
      if (const auto count = read_counter(folder + file)) return count;
    }
  }
  return std::nullopt;
}

}  // namespace stretto::launch
