// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/print.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "stretto/schedule/joint.h"

namespace stretto::schedule {
namespace {

constexpr std::size_t kColumns = 100;

std::string_view access_of(const Schedule& schedule) {
  if (schedule.team.empty()) return "messages";
  return std::cmp_equal(schedule.team.size(), schedule.rank_count) ? "mapped"
                                                                   : "mapped and messages";
}

std::string_view name(Order order) {
  switch (order) {
    case Order::canonical:
      return "canonical order";
    case Order::fixed:
      return "fixed order";
    case Order::none:
      break;
  }
  return "no order";
}

std::string print(const Slot& slot) {
  switch (slot.buffer) {
    case Buffer::input:
      return fmt::format("input c{}", slot.chunk.value());
    case Buffer::output:
      return fmt::format("output c{}", slot.chunk.value());
    case Buffer::raw:
      return fmt::format("raw {} (c{})", slot.index, slot.chunk.value());
    case Buffer::partial:
      break;
  }
  return fmt::format("partial {} (c{})", slot.index, slot.chunk.value());
}

// "input c1"; in a schedule with a team, "input c1 of 0-3". The same slot of consecutive ranks is
// one item.
std::string print(const Schedule& schedule, std::span<const Place> places) {
  std::string text;
  for (std::size_t first = 0; first < places.size();) {
    std::size_t last = first;
    while (last + 1 < places.size() && places[last + 1].slot == places[first].slot &&
           places[last + 1].rank == places[last].rank.value() + 1) {
      ++last;
    }
    if (!text.empty()) text += ", ";
    text += print(places[first].slot);
    if (!schedule.team.empty()) {
      text += fmt::format(" of {}", places[first].rank.value());
      if (last > first) text += fmt::format("-{}", places[last].rank.value());
    }
    first = last + 1;
  }
  return text;
}

std::string count_of(std::int32_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string head(const Schedule& schedule) {
  std::string text =
      fmt::format("{} by {}", stretto::name(schedule.collective), schedule.algorithm);
  if (has_root(schedule.collective)) {
    const bool to_root =
        schedule.collective == Collective::reduce || schedule.collective == Collective::gather;
    text += fmt::format(" {} {}", to_root ? "to" : "from", schedule.root.value());
  }
  return text;
}

std::string properties(const Schedule& schedule) {
  return fmt::format("{}, {}, {}, {}, {}", access_of(schedule), name(schedule.order),
                     count_of(schedule.chunk_count, "chunk"),
                     count_of(schedule.raw_slots, "raw slot"),
                     count_of(schedule.partial_slots, "partial slot"));
}

// "0>1 partial c3". Of the two slots it shows the chunk, and whether the value is partial.
std::string print_message(const JointSchedule& joint, std::size_t send) {
  const Step& step = joint.step(send);
  std::string text = fmt::format("{}>{}", joint.rank_of(send), step.peer.value());
  const auto sources = joint.schedule_of(send).sources(step);
  if (sources.empty()) return text + " signal";
  const Slot& slot = sources.front().slot;
  return text + fmt::format("{} c{}", slot.buffer == Buffer::partial ? " partial" : "",
                            slot.chunk.value());
}

// Prints items side by side, on several lines if one is not enough.
std::string side_by_side(const std::string& label, const std::vector<std::string>& items) {
  std::string text = label;
  std::size_t line_begin = 0;
  for (const std::string& item : items) {
    if (text.size() - line_begin + 3 + item.size() > kColumns) {
      text += '\n';
      line_begin = text.size();
      text += std::string(label.size(), ' ');
    }
    text += "   " + item;
  }
  return text + '\n';
}

std::string print_messages(const JointSchedule& joint) {
  const JointRun execution = execute(joint);
  std::vector<bool> ended(joint.step_count());
  for (const std::int32_t step : execution.order) ended[step] = true;
  std::map<std::int32_t, std::vector<std::string>> by_level;
  std::vector<std::string> stuck;
  for (std::size_t step = 0; step < joint.step_count(); ++step) {
    if (joint.step(step).kind != StepKind::send) continue;
    (ended[step] ? by_level[execution.level[step]] : stuck).push_back(print_message(joint, step));
  }
  std::string text;
  for (const auto& [level, messages] : by_level) {
    text += side_by_side(fmt::format("step {}", level), messages);
  }
  if (!stuck.empty()) text += side_by_side("never ", stuck);
  return text;
}

std::string print_by_syncs(std::span<const Schedule> schedules) {
  std::map<std::int32_t, std::string> by_syncs;  // Steps of all ranks, by the syncs before them.
  std::int32_t sync_count = 0;
  for (const Schedule& schedule : schedules) {
    std::int32_t syncs = 0;
    for (const Step& step : schedule.steps) {
      if (step.kind == StepKind::sync) {
        sync_count = std::max(sync_count, ++syncs);
      } else {
        by_syncs[syncs] += fmt::format("  {}  {}\n", schedule.rank.value(), print(schedule, step));
      }
    }
  }
  std::string text = by_syncs[0];
  for (std::int32_t sync = 1; sync <= sync_count; ++sync) text += "sync\n" + by_syncs[sync];
  return text;
}

}  // namespace

std::string print(const Schedule& schedule, const Step& step) {
  const std::string sources = print(schedule, schedule.sources(step));
  const std::string targets = print(schedule, schedule.targets(step));
  switch (step.kind) {
    case StepKind::send:
      return fmt::format("send {} to {}", sources.empty() ? "signal" : sources, step.peer.value());
    case StepKind::recv:
      return fmt::format("recv {} from {}", targets.empty() ? "signal" : targets,
                         step.peer.value());
    case StepKind::reduce:
      return fmt::format("reduce {} > {}{}", sources, targets, step.completes ? ", completes" : "");
    case StepKind::copy:
      return fmt::format("copy {} > {}", sources, targets);
    case StepKind::sync:
      break;
  }
  return "sync";
}

std::string print(const Schedule& schedule) {
  std::string text = fmt::format("{}, rank {} of {}: {}\n", head(schedule), schedule.rank.value(),
                                 schedule.rank_count, properties(schedule));
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    text += fmt::format("{:3}  {}\n", i, print(schedule, schedule.steps[i]));
  }
  return text;
}

std::string print(std::span<const Schedule> schedules) {
  if (schedules.empty()) return "";
  const Schedule& first = schedules.front();
  std::string text = fmt::format("{} on {}: {}\n", head(first), count_of(first.rank_count, "rank"),
                                 properties(first));
  return text + (first.team.empty() ? print_messages(JointSchedule(schedules))
                                    : print_by_syncs(schedules));
}

}  // namespace stretto::schedule
