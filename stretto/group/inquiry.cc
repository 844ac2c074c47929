// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/inquiry.h"

#include <algorithm>

#include <fmt/format.h>

namespace stretto::group {
namespace {

// In larger groups this rank asks only the members that it waits for itself.
constexpr int kAskEverybodyMax = 64;
// An older operation that has asked within this time keeps its answers, since the younger ones wait
// for it.
constexpr std::chrono::seconds kAnswersAreNew(2);

// Describes a rank that has not answered. Background threads look at inquiries at least about once
// a second, so a shorter silence means nothing.
std::string silence(Duration asked) {
  if (asked < std::chrono::seconds(1)) {
    return fmt::format(
        "has not answered within {}: its program may be busy or asleep, or it is stopped",
        waited(asked));
  }
  return "does not answer: it is stopped, or so busy that no thread of it makes progress";
}

bool is_collective(std::uint32_t sequence) { return sequence != transport::kPointToPoint; }

}  // namespace

std::string in_seconds(Duration duration) { return fmt::format("{:.1f} s", seconds(duration)); }

std::string waited(Duration duration) {
  const double milliseconds = 1e3 * seconds(duration);
  return milliseconds < 1e3 ? fmt::format("{:.0f} ms", milliseconds) : in_seconds(duration);
}

std::optional<Rank> rank_in_group(const execution::Membership& membership, Rank job_rank) {
  const auto found = std::ranges::find(membership.members, job_rank);
  if (found == membership.members.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - membership.members.begin());
}

void Inquiry::begin(std::uint32_t sequence, const OperationDescriptor& operation, TimePoint now,
                    bool may_wait) {
  if (may_wait && at_ + kAnswersAreNew >= now) return;
  sequence_ = sequence;
  operation_ = operation;
  at_ = now;
  answers_.assign(membership_->members.size(), std::nullopt);
}

void Inquiry::ask(Rank member, std::uint32_t sequence, const OperationDescriptor& operation) {
  if (member == membership_->rank) return;
  engine_->transport().inquire(membership_->job_rank(member), membership_->group, sequence,
                               operation);
}

void Inquiry::ask_about(std::uint32_t sequence, const OperationDescriptor& operation,
                        const std::vector<Rank>& waited_for) {
  const bool names_all = operation.layout == kMonitoredLayout;
  if (!is_collective(sequence) || (size() > kAskEverybodyMax && !names_all)) {
    for (const Rank member : waited_for) ask(member, sequence, operation);
    return;
  }
  for (std::int32_t member = 0; member < size(); ++member) ask(member, sequence, operation);
}

void Inquiry::take(Rank member, std::uint32_t sequence, const std::string& text) {
  if (!is_about(sequence)) return;
  std::optional<StateReport> report = decode_state_report(text);
  if (!report) return;
  for (const Rank awaited : report->waits_for) {
    const std::optional<Rank> next = rank_in_group(*membership_, awaited);
    if (next && !answers_[*next]) ask(*next, sequence_, operation_);
  }
  answers_[member] = std::move(report);
}

std::string Inquiry::describe_arrived(std::uint32_t sequence) const {
  if (!is_collective(sequence) || !is_about(sequence) || size() > kAskEverybodyMax) return {};
  const auto here = std::ranges::count_if(
      answers_, [](const auto& answer) { return answer && answer->has_entered; });
  return fmt::format("; {} of {} others {} arrived", here, size() - 1, here == 1 ? "has" : "have");
}

Late Inquiry::find_late(std::uint32_t sequence, const std::vector<Rank>& waited_for) const {
  Late late;
  const bool answered = is_about(sequence);
  for (std::int32_t member = 0; is_collective(sequence) && answered && member < size(); ++member) {
    const auto& answer = answers_[member];
    if (answer && !answer->has_entered) late.ranks.push_back(member);
  }
  const bool all_have_entered = is_collective(sequence) && late.ranks.empty();
  if (late.ranks.empty()) {
    late.ranks = waited_for;
  } else {
    for (const Rank root : roots_of(waited_for)) {
      if (!answers_[root]) late.ranks.push_back(root);
    }
  }
  const std::vector<Rank> roots = answered ? roots_of(late.ranks) : late.ranks;
  if (all_have_entered) late.ranks.clear();
  for (const Rank root : roots) {
    if (!std::ranges::count(late.ranks, root)) late.ranks.push_back(root);
  }
  // With several roots, no single rank is at fault.
  if (roots.size() == 1) late.culprit = membership_->job_rank(roots.front());
  return late;
}

std::vector<Rank> Inquiry::roots_of(std::vector<Rank> waited_for) const {
  const std::vector<Rank> begin = waited_for;
  std::vector<Rank> roots;
  RankVector<bool> seen(size());
  seen[membership_->rank] = true;
  while (!waited_for.empty()) {
    const Rank member = waited_for.back();
    waited_for.pop_back();
    if (seen[member]) continue;
    seen[member] = true;
    bool waits = false;
    const auto& answer = answers_[member];
    for (const Rank awaited : answer ? answer->waits_for : std::vector<Rank>()) {
      const std::optional<Rank> next = rank_in_group(*membership_, awaited);
      if (!next) continue;
      waits = true;
      waited_for.push_back(*next);
    }
    if (!waits) roots.push_back(member);
  }
  std::ranges::sort(roots);
  return roots.empty() ? begin : roots;
}

// An inquiry waits behind all that is queued for the asked rank, and the answer behind all that the
// asked rank has queued: of messages of more than 1 MiB, up to 4 MiB in pieces. Both also wait
// behind the bytes in the socket's buffers. So bytes under way explain a missing answer.
std::string Inquiry::describe_traffic(Rank job_rank) const {
  const transport::Link::Contact contact = engine_->transport().contact(job_rank);
  std::string text;
  if (contact.waiting_bytes > 0) {
    text = fmt::format(
        ", and {:.1f} KiB for rank {} are still under way, of late at {:.1f} KiB/s: the network is "
        "slow, not the rank",
        static_cast<double>(contact.waiting_bytes) / 1024, job_rank.value(),
        contact.sent_rate / 1024);
  }
  if (contact.received_rate > 0) {
    text += fmt::format(", and a message of rank {} still arrives, of late at {:.1f} KiB/s",
                        job_rank.value(), contact.received_rate / 1024);
  }
  return text;
}

std::string Inquiry::describe_late(std::uint32_t sequence, const std::vector<Rank>& late) const {
  std::string list;
  for (const Rank member : late) {
    const Rank job_rank = membership_->job_rank(member);
    const std::string traffic = describe_traffic(job_rank);
    list += (list.empty() ? "" : "; ") + engine_->name_of(job_rank);
    if (is_about(sequence)) {
      const std::string unheard =
          traffic.empty() ? silence(Clock::now() - at_) : "has not answered";
      const auto& answer = answers_[member];
      list += ", which " + (answer ? answer->text : unheard);
    }
    list += traffic;
  }
  return list.empty() ? "an earlier operation of the group" : list;
}

}  // namespace stretto::group
