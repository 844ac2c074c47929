// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/plan_cache.h"

#include <algorithm>
#include <cstring>

#include "stretto/execution/message_execution.h"

namespace stretto::group {
namespace {

// Bounds the cache of a program that never repeats an operation.
constexpr std::size_t kEntriesMax = 512;

std::uint64_t hash_of(const std::optional<execution::SharesView>& shares) {
  if (!shares) return 0;
  return execution::layout_hash(shares->counts) ^ (execution::layout_hash(shares->received) << 1);
}

}  // namespace

bool PlanCache::Key::operator<(const Key& other) const {
  if (shares != other.shares) return shares < other.shares;
  static_assert(std::has_unique_object_representations_v<OperationDescriptor>);
  return std::memcmp(&operation, &other.operation, sizeof(operation)) < 0;
}

PlanCache::PlanCache(const execution::Membership& membership, transport::Endpoint& transport,
                     Planner::Setting setting)
    : membership_(&membership), transport_(&transport) {
  replace_planner(std::move(setting));
}

void PlanCache::replace_planner(Planner::Setting setting) {
  planner_ = std::make_shared<const Planner>(std::move(setting));
  if (team_lanes_) team_lanes_->use_lanes(planner_->team_lanes());
  if (windows_) windows_->takes_lines = planner_->setting().selector.links.memory.takes_lines;
}

void PlanCache::use_links(const LinkModel& links) {
  Planner::Setting setting = planner_->setting();
  setting.selector.links = links;
  replace_planner(std::move(setting));
}

void PlanCache::use_windows(execution::Windows windows) {
  windows_ = std::move(windows);
  // A rank that is alone on its host has no team.
  if (!is_one_team() && windows_->team.size() > 1) {
    team_lanes_.emplace(*windows_, *membership_, *transport_);
  }
  Planner::Setting setting = planner_->setting();
  setting.selector.has_core_for_each_rank = !windows_->oversubscribed;
  setting.selector.has_teams = !is_one_team();
  setting.selector.cache_bytes = windows_->cache_bytes;
  setting.is_one_team = is_one_team();
  setting.single_copy = windows_->single_copy;
  replace_planner(std::move(setting));
}

void PlanCache::use_library(std::shared_ptr<CollectiveLibrary> library) {
  library_.library = std::move(library);
  Planner::Setting setting = planner_->setting();
  setting.library = library_.library.get();
  setting.serves_devices = library_.library->for_devices() != nullptr;
  replace_planner(std::move(setting));
}

void PlanCache::abandon_device_library() {
  if (library_.library != nullptr && library_.library->for_devices() != nullptr) library_.abandon();
}

void PlanCache::use_device(std::unique_ptr<execution::KernelQueue> queue,
                           std::vector<std::int32_t> devices) {
  device_ = std::move(queue);
  Planner::Setting setting = planner_->setting();
  setting.devices = std::move(devices);
  replace_planner(std::move(setting));
}

PlanCache::Entry* PlanCache::find(const OperationDescriptor& operation,
                                  const std::optional<execution::SharesView>& shares) {
  const auto [first, last] = entries_.equal_range({operation, hash_of(shares)});
  const auto found = std::find_if(
      first, last, [&](const auto& item) { return !shares || *shares == item.second.shares; });
  return found == last ? nullptr : &found->second;
}

PlanCache::Entry& PlanCache::add(const OperationDescriptor& operation,
                                 const std::optional<execution::SharesView>& shares, Plans plans) {
  // It is merged into the cache when complete, as an allocation may throw before.
  std::multimap<Key, Entry> added;
  Entry& entry = added.emplace(Key{operation, hash_of(shares)}, Entry())->second;
  entry.name = describe(operation);
  if (shares) entry.shares = shares->copy();
  entry.plans = std::move(plans);
  if (const Plans& made = entry.plans; made.messages == nullptr) {
    auto mapped = std::make_unique<execution::MappedExecution>(
        execution::MappedExecution::Plans{
            .direct = made.direct, .staged = made.staged, .single_copy = made.single_copy},
        *membership_, *windows_, *transport_,
        operation.algorithm == kDeviceAlgorithm ? *device_ : execution::host_queue());
    entry.mapped = mapped.get();
    entry.idle.push_back(std::move(mapped));
  }
  entries_.merge(added);
  return entry;
}

bool PlanCache::is_full() const { return entries_.size() >= kEntriesMax; }

void PlanCache::shrink() {
  std::erase_if(entries_, [](const auto& item) { return item.second.in_use == 0; });
  count_idle();
}

std::unique_ptr<execution::Execution> PlanCache::make(const Entry& entry) {
  const Plans& plans = entry.plans;
  if (plans.library != nullptr) {
    return std::make_unique<execution::LibraryExecution>(plans.library, plans.messages, library_,
                                                         *membership_, *transport_);
  }
  execution::TeamLanes* const team = team_lanes_ ? &*team_lanes_ : nullptr;
  return std::make_unique<execution::MessageExecution>(plans.messages, *membership_, *transport_,
                                                       team);
}

std::unique_ptr<execution::Execution> PlanCache::take(Entry& entry) {
  entry.last_use = ++uses_;
  if (entry.idle.empty()) {
    entry.idle.reserve(entry.in_use + 1);  // So keep() allocates nothing.
    return make(entry);
  }
  std::unique_ptr<execution::Execution> execution = std::move(entry.idle.back());
  entry.idle.pop_back();
  idle_bytes_ -= std::min(idle_bytes_, execution->idle_bytes());
  return execution;
}

// Bounds the scratch of idle executions, as a program may use many kinds.
void PlanCache::keep(Entry& entry, std::unique_ptr<execution::Execution> execution) {
  idle_bytes_ += execution->idle_bytes();
  entry.idle.push_back(std::move(execution));
  while (idle_bytes_ > kIdleBytesMax) {
    Entry* const other = least_needed_beside(entry);
    if (other == nullptr) return;
    other->idle.clear();
    count_idle();
  }
}

// Programs repeat their operations in the same order, so the kind that was used last is needed last
// and goes first. If the least recently used went first, a few kinds too many would suffice that
// each has lost its scratch when its turn comes. A kind that seems forgotten goes before all
// others.
PlanCache::Entry* PlanCache::least_needed_beside(const Entry& entry) {
  Entry* oldest = nullptr;
  Entry* newest = nullptr;
  for (auto& [key, other] : entries_) {
    if (&other == &entry || other.runs_alone() || other.idle.empty()) continue;
    if (oldest == nullptr || other.last_use < oldest->last_use) oldest = &other;
    if (newest == nullptr || other.last_use > newest->last_use) newest = &other;
  }
  const bool is_forgotten = oldest != nullptr && uses_ - oldest->last_use > kForgottenAfter;
  return is_forgotten ? oldest : newest;
}

void PlanCache::count_idle() {
  idle_bytes_ = 0;
  for (const auto& [key, entry] : entries_) {
    for (const auto& kept : entry.idle) idle_bytes_ += kept->idle_bytes();
  }
}

bool PlanCache::release_mappings() {
  bool all = true;
  for (auto& [key, entry] : entries_) {
    for (auto& execution : entry.idle) all = execution->release_mappings() && all;
  }
  return all;
}

}  // namespace stretto::group
