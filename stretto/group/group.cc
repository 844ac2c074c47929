// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/group.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/check.h"
#include "stretto/execution/mapped_execution.h"
#include "stretto/execution/message_execution.h"

namespace stretto::group {
namespace {

// Kinds of operations remembered; a program that never repeats itself must not grow for ever.
constexpr std::size_t kCacheMax = 512;
constexpr std::size_t kIdleBytesMax = 64 * 1024 * 1024;

}  // namespace

bool Group::CacheKey::operator<(const CacheKey& other) const {
  if (in_windows != other.in_windows) return in_windows < other.in_windows;
  if (shares != other.shares) return shares < other.shares;
  static_assert(std::has_unique_object_representations_v<OperationDescriptor>);
  return std::memcmp(&operation, &other.operation, sizeof(operation)) < 0;
}

Group::Group(std::shared_ptr<Engine> engine, execution::Membership membership, Options options)
    : engine_(std::move(engine)),
      membership_(std::move(membership)),
      options_(std::move(options)),
      planner_(std::make_shared<const Planner>(
          Planner::Setting{.rank = membership_.rank,
                           .selector = {.rank_count = static_cast<int>(membership_.members.size()),
                                        .hosts = hosts_of(options_.hosts, membership_.members),
                                        .links = options_.links},
                           .segment_bytes = options_.segment_bytes,
                           .verification = options_.verification})),
      mailbox_(engine_, membership_),
      departed_(membership_.members.size()),
      agreement_(size(), membership_.rank),
      ended_at_(Clock::now()) {
  engine_->add(*this);
  // What happened before is told to nobody again.
  for (const Rank member : membership_.members) {
    const auto peer = engine_->transport().peer_status(member);
    if (peer.status.ok()) continue;
    peer.left ? member_left(member, peer.status) : member_lost(member, peer.status);
  }
}

Group::~Group() {
  engine_->remove(*this);
  tell_what_has_failed();
  tell_last_operation();
  fail(Status(StatusCode::aborted, "the communicator was destroyed with operations in flight"),
       false);
  engine_->transport().forget(membership_.group, membership_.members, failure_, farewell_);
}

void Group::begin_numbering() {
  close_gate();
  next_sequence_ = 1;
  past_.clear();
  std::erase_if(beliefs_, [](const Belief& b) { return b.sequence >= transport::kSetUpSequence; });
  ended_ = 0;
  reported_ = 0;
  is_set_up_ = true;
  open_gate();
}

template <class Change>
void Group::change_planning(const Change& change) {
  Planner::Setting setting = planner_->setting();
  change(setting);
  planner_ = std::make_shared<const Planner>(std::move(setting));
}

void Group::use_links(const LinkModel& links) {
  close_gate();
  options_.links = links;
  change_planning([&](Planner::Setting& setting) { setting.selector.links = links; });
  shrink_cache();  // What has been chosen by other numbers.
  open_gate();
}

void Group::use_windows(execution::Windows windows) {
  windows_ = std::move(windows);
  change_planning([&](Planner::Setting& setting) {
    setting.selector.has_core_for_each_rank = !windows_->crowded;
    setting.selector.has_teams = !is_one_team();
    setting.is_one_team = is_one_team();
    setting.single_copy = windows_->single_copy;
  });
  // Alone on its host, a rank has nobody to meet there.
  if (is_one_team() || windows_->team.size() == 1) return;
  team_lanes_.emplace(*windows_, membership_, engine_->transport());
}

Result<Group::CacheEntry*> Group::find_entry(const CacheKey& key, const Submission& submission) {
  const auto found = cache_.find(key);
  if (found == cache_.end()) return nullptr;
  const bool same = !submission.shares || *submission.shares == found->second.shares;
  if (same) return &found->second;
  return status_of(StatusCode::internal, "two lists of counts have the same hash");
}

// An operation of a new kind is planned without the lock: that may take tenths of a second, while
// others submit operations and take turns of progress.
Result<Group::CacheEntry*> Group::entry_for(Submission& submission,
                                            std::unique_lock<std::mutex>& held) {
  while (true) {
    const std::shared_ptr<const Planner> planner = planner_;
    if (!submission.algorithm.empty()) {
      Result<std::uint8_t> number =
          planner->number_of(submission.operation, !submission.shares, submission.algorithm);
      if (!number.ok()) return number.status();
      submission.operation.algorithm = *number;
    }
    CacheKey key{submission.operation, 0, is_one_team()};
    if (submission.shares) {
      key.shares = execution::layout_hash(submission.shares->counts) ^
                   (execution::layout_hash(submission.shares->received) << 1);
    }
    Result<CacheEntry*> found = find_entry(key, submission);
    if (!found.ok() || *found != nullptr) return found;
    held.unlock();
    Result<Plans> plans =
        planner->plan(submission.operation, submission.shares, submission.algorithm);
    held = engine_->lock();
    if (!failure_.ok()) return failure_;
    if (!plans.ok()) return plans.status();
    if (planner != planner_) continue;    // Something has changed meanwhile by which it chooses.
    found = find_entry(key, submission);  // Another thread may have been quicker.
    if (!found.ok() || *found != nullptr) return found;
    return &add_entry(key, submission, std::move(*plans));
  }
}

Group::CacheEntry& Group::add_entry(const CacheKey& key, const Submission& submission,
                                    Plans plans) {
  close_gate();
  if (cache_.size() >= kCacheMax) shrink_cache();
  CacheEntry entry;
  if (submission.shares) entry.shares = submission.shares->copy();
  entry.runs_alone = plans.messages == nullptr;
  entry.make = [this, plans = std::move(plans)]() -> std::unique_ptr<execution::Execution> {
    if (plans.messages != nullptr) {
      return std::make_unique<execution::MessageExecution>(
          plans.messages, membership_, engine_->transport(), team_lanes_ ? &*team_lanes_ : nullptr);
    }
    return std::make_unique<execution::MappedExecution>(
        execution::MappedExecution::Plans{
            .direct = plans.direct, .staged = plans.staged, .single_copy = plans.single_copy},
        membership_, *windows_, engine_->transport());
  };
  if (entry.runs_alone) entry.idle.push_back(entry.make());
  return cache_.emplace(key, std::move(entry)).first->second;
}

void Group::shrink_cache() {
  recent_ = {};
  std::erase_if(cache_, [](const auto& item) { return item.second.in_use == 0; });
  count_idle();
}

std::shared_ptr<PendingCollective> Group::pooled() {
  for (const auto& collective : pool_) {
    if (collective.use_count() == 1) return collective;
  }
  return pool_.emplace_back(std::make_shared<PendingCollective>(engine_, id()));
}

Status Group::borrow_scratch(Submission& submission) {
  Packing& packing = *submission.packing;
  if (packing.place != nullptr) return {};
  Result<transport::Transport::Region> scratch =
      scratch_.take(packing.bytes(), engine_->transport());
  if (!scratch.ok()) return scratch.status();
  packing.scratch = std::move(*scratch);
  if (packing.has_sources()) submission.input = packing.input();
  if (!packing.targets.empty()) submission.output = packing.output();
  return {};
}

Status Group::check_buffers(const CacheEntry& entry, const Submission& submission) const {
  const execution::Execution* any = entry.idle.empty() ? nullptr : entry.idle.front().get();
  for (const Running& running : running_) {
    if (running.entry == &entry) any = running.execution.get();
  }
  if (any == nullptr) return {};  // None is kept of those that can do with any buffers.
  return any->check_buffers(submission.input.data(), submission.output.data());
}

Result<std::shared_ptr<PendingOperation>> Group::submit(Submission& submission,
                                                        std::unique_lock<std::mutex>& held) {
  if (!failure_.ok()) return failure_;
  Result<CacheEntry*> entry = entry_for(submission, held);
  close_gate();
  Status status = entry.status();
  if (status.ok() && submission.packing) status = borrow_scratch(submission);
  if (status.ok()) status = check_buffers(**entry, submission);
  if (!status.ok()) {
    open_gate();
    return status;
  }
  const std::uint32_t sequence = next_sequence_++;
  std::shared_ptr<PendingCollective> collective = pooled();
  collective->begin(submission.operation, sequence, submission.deadline);
  collective->call = {.operation = submission.operation,
                      .input = submission.input.data(),
                      .output = submission.output.data(),
                      .sequence = sequence};
  collective->packing = std::move(submission.packing);
  collective->runs_inline =
      std::max(submission.input.size(), submission.output.size()) <= execution::kInlineBytes;
  ++(*entry)->in_use;
  queue_.push({collective, *entry});
  engine_->submitted();
  // The short way: what little can be done at once is done here, by the caller.
  advance(engine_->turn_of(inline_turn_bytes(collective->runs_inline)));
  return std::shared_ptr<PendingOperation>(std::move(collective));
}

Result<std::shared_ptr<PendingOperation>> Group::submit(const Mailbox::Message& message) {
  if (!failure_.ok()) return failure_;
  engine_->submitted();
  return std::shared_ptr<PendingOperation>(mailbox_.submit(message));
}

// How many bytes the call that submits an operation may work on. What is left, those who wait or
// poll do, or the progress thread: with one, a large operation is only begun.
std::size_t Group::inline_turn_bytes(bool runs_inline) const {
  if (runs_inline) return execution::kTurnBytes;
  return engine_->has_progress_thread() ? 0 : execution::kInlineBytes;
}

bool Group::may_start(const Queued& queued) const {
  if (running_.empty()) return true;
  return !queued.entry->runs_alone && !running_.front().entry->runs_alone &&
         running_.size() < kRunningMax;
}

// Returns whether anything was done.
bool Group::start_ready(execution::Turn& turn) {
  bool moved = false;
  while (!queue_.empty() && may_start(queue_.front())) {
    Status packed;
    if (auto& packing = queue_.front().collective->packing; packing && !packing->is_packed()) {
      if (turn.is_over()) return moved;
      moved = true;
      packed = packing->pack(turn);
      if (packed.ok() && !packing->is_packed()) return moved;
    }
    Queued queued = queue_.front();
    queue_.pop();
    CacheEntry& entry = *queued.entry;
    Running& running = running_.emplace_back();
    running.collective = std::move(queued.collective);
    running.entry = &entry;
    running.execution = take_execution(entry);
    moved = true;
    report(*running.collective);
    if (packed.ok()) {
      running.execution->start(running.collective->call, turn);
    } else {
      running.execution->fail(packed);
    }
  }
  return moved;
}

std::unique_ptr<execution::Execution> Group::take_execution(CacheEntry& entry) {
  if (entry.idle.empty()) return entry.make();
  std::unique_ptr<execution::Execution> execution = std::move(entry.idle.back());
  entry.idle.pop_back();
  idle_bytes_ -= std::min(idle_bytes_, execution->idle_bytes());
  return execution;
}

bool Group::advance(execution::Turn turn) {
  if (is_one_team()) release_mappings();
  if (!failure_.ok()) return false;
  adopt_parked();
  bool moved = start_ready(turn);
  moved = mailbox_.advance() || moved;
  for (std::size_t i = 0; i < running_.size();) {
    execution::Execution& execution = *running_[i].execution;
    moved = execution.advance(turn) || moved;
    // Advancing may have told this group of a failure, which ends everything.
    if (!failure_.ok()) return true;
    if (!execution.ended()) {
      ++i;
      continue;
    }
    moved = true;
    if (!execution.status().ok()) {
      fail(in_context(running_[i].collective.get(), execution.status()), true);
      return true;
    }
    if (auto& packing = running_[i].collective->packing; packing && !packing->is_unpacked()) {
      packing->unpack(turn);
      if (!packing->is_unpacked()) {
        ++i;
        continue;
      }
    }
    retire(i);
    start_ready(turn);
  }
  if (!retire_messages()) return true;
  if (any_departed_) check_departed();
  return moved;
}

// A message that failed fails the group, so that its other end hears of it. Returns whether the
// group goes on.
bool Group::retire_messages() {
  const auto failed = mailbox_.retire();
  if (failed == nullptr) return true;
  fail(in_context(failed.get(), mailbox_.failure()), true);
  return false;
}

// For the next call of the kind; but a program with many kinds must not keep scratch for each.
void Group::keep_idle(CacheEntry& entry, std::unique_ptr<execution::Execution> execution) {
  idle_bytes_ += execution->idle_bytes();
  entry.idle.push_back(std::move(execution));
  if (idle_bytes_ <= kIdleBytesMax) return;
  for (auto& [key, other] : cache_) {
    if (&other != &entry && !other.runs_alone) other.idle.clear();
  }
  count_idle();
}

void Group::count_idle() {
  idle_bytes_ = 0;
  for (const auto& [key, entry] : cache_) {
    for (const auto& kept : entry.idle) idle_bytes_ += kept->idle_bytes();
  }
}

void Group::retire(std::size_t index) {
  Running running = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  keep_idle(*running.entry, std::move(running.execution));
  if (!running.collective->packing) remember(*running.collective, *running.entry);
  --running.entry->in_use;
  PendingCollective& collective = *running.collective;
  if (collective.packing) {
    scratch_.give_back(std::move(collective.packing->scratch));
    collective.packing.reset();
  }
  past_.add(collective.sequence(), collective.operation(),
            [&](std::uint32_t sequence) { return is_running(sequence); });
  ended_ = std::max(ended_.load(), collective.sequence());
  collective.finish(Status());
  open_gate();
}

}  // namespace stretto::group
