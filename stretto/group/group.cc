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
constexpr std::size_t kSegmentBytesMax = 256 * 1024;
constexpr std::size_t kSegmentBytesMin = 32 * 1024;
constexpr std::size_t kScratchBytes = 8 * 1024 * 1024;
constexpr std::size_t kIdleBytesMax = 64 * 1024 * 1024;
constexpr std::size_t kWhole = std::size_t{1} << 62;
// Of one slot, what is staged at a time: about what stays in a core's own cache, as fewer syncs
// gain nothing more.
constexpr std::size_t kStagedBytes = 512 * 1024;
// Where some ranks only lay out and others only copy, the latter begin when they have this much.
constexpr std::size_t kStreamedBytes = 64 * 1024;

// The same on all ranks, since both sides of a message must cut alike: small enough that the
// scratch of a lane stays bounded when every rank sends to every other.
std::size_t message_segment_bytes(int rank_count) {
  return std::clamp(kScratchBytes / static_cast<std::size_t>(rank_count), kSegmentBytesMin,
                    kSegmentBytesMax);
}

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
      selector_({.rank_count = static_cast<int>(membership_.members.size()),
                 .hosts = hosts_of(options_.hosts, membership_.members),
                 .links = options_.links}),
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

void Group::use_links(const LinkModel& links) {
  close_gate();
  options_.links = links;
  selector_.use_links(links);
  shrink_cache();  // What has been chosen by other numbers.
  open_gate();
}

void Group::use_windows(execution::Windows windows) {
  selector_.use_cores(!windows.crowded);
  windows_ = std::move(windows);
  if (is_one_team()) return;
  selector_.use_teams();
  team_lanes_.emplace(*windows_, membership_, engine_->transport());
}

std::shared_ptr<const execution::Plan> Group::make_plan(const schedule::Algorithm& algorithm,
                                                        const Submission& submission,
                                                        std::size_t segment_bytes) {
  const OperationDescriptor& operation = submission.operation;
  schedule::Schedule steps =
      algorithm.build({.rank = membership_.rank,
                       .rank_count = size(),
                       .root = operation.root < 0 ? Rank(0) : Rank(operation.root),
                       .hosts = selector_.hosts()});
  if (algorithm.access == schedule::Access::mapped && segment_bytes < kWhole) {
    const auto slots = static_cast<std::size_t>(std::max(1, steps.raw_slots));
    const bool streams = has_root(operation.collective) && steps.sync_count() == 1;
    segment_bytes =
        std::min(execution::Window::slot_bytes(slots), streams ? kStreamedBytes : kStagedBytes);
  }
  if (algorithm.access == schedule::Access::both) {
    // By what all ranks know, since both sides of a message must cut alike.
    const auto slots = static_cast<std::size_t>(steps.chunk_count);
    segment_bytes = std::min(segment_bytes, execution::Window::lane_slot_bytes(slots));
  }
  if (options_.segment_bytes > 0 && segment_bytes < kWhole)
    segment_bytes = std::min(segment_bytes, options_.segment_bytes);
  return std::make_shared<const execution::Plan>(
      std::move(steps),
      execution::Plan::Options{.operation = operation,
                               .shares = submission.shares.value_or(execution::SharesView()).copy(),
                               .segment_bytes_max = segment_bytes});
}

std::size_t Group::segment_bytes_of_messages() const { return message_segment_bytes(size()); }

SingleCopy Group::single_copy_of(const OperationDescriptor& operation, const Choice& choice) const {
  const SingleCopy agreed = windows_->single_copy;
  const bool reaches_buffers =
      choice.direct != nullptr && operation.collective != Collective::barrier;
  if (!reaches_buffers || agreed == SingleCopy::off) return SingleCopy::off;
  // What has been asked for by name must not depend on pages, which each rank sees by itself.
  if (choice.staged == nullptr) return SingleCopy::always;
  const bool wanted = agreed == SingleCopy::always || selector_.prefers_single_copy(operation);
  return wanted ? agreed : SingleCopy::off;
}

Status Group::fill(CacheEntry& entry, const Submission& submission) {
  const bool equal = !submission.shares.has_value();
  Result<Choice> choice =
      selector_.choose(submission.operation, submission.algorithm, is_one_team(), equal);
  if (!choice.ok()) return choice.status();
  if (!equal) entry.shares = submission.shares->copy();
  if (choice->messages != nullptr) {
    entry.make = [this,
                  plan = make_plan(*choice->messages, submission, segment_bytes_of_messages())] {
      return std::make_unique<execution::MessageExecution>(plan, membership_, engine_->transport(),
                                                           team_lanes_ ? &*team_lanes_ : nullptr);
    };
    return {};
  }
  execution::MappedExecution::Plans plans;
  if (choice->direct != nullptr) plans.direct = make_plan(*choice->direct, submission, kWhole);
  if (choice->staged != nullptr) {
    plans.staged = make_plan(*choice->staged, submission, execution::Window::kHalfBytes);
  }
  plans.single_copy = single_copy_of(submission.operation, *choice);
  entry.make = [this, plans = std::move(plans)] {
    return std::make_unique<execution::MappedExecution>(plans, membership_, *windows_,
                                                        engine_->transport());
  };
  entry.runs_alone = true;
  entry.idle.push_back(entry.make());
  return {};
}

Result<Group::CacheEntry*> Group::entry_for(Submission& submission) {
  const bool equal = !submission.shares.has_value();
  if (!submission.algorithm.empty()) {
    Result<Choice> choice =
        selector_.choose(submission.operation, submission.algorithm, is_one_team(), equal);
    if (!choice.ok()) return choice.status();
    const schedule::Algorithm* named = choice->messages != nullptr ? choice->messages
                                       : choice->direct != nullptr ? choice->direct
                                                                   : choice->staged;
    submission.operation.algorithm = named->id;
  }
  CacheKey key{submission.operation, 0, is_one_team()};
  if (!equal) {
    key.shares = execution::layout_hash(submission.shares->counts) ^
                 (execution::layout_hash(submission.shares->received) << 1);
  }
  const auto found = cache_.find(key);
  if (found != cache_.end()) {
    if (equal || *submission.shares == found->second.shares) return &found->second;
    return status_of(StatusCode::internal, "two lists of counts have the same hash");
  }
  if (cache_.size() >= kCacheMax) shrink_cache();
  CacheEntry entry;
  STRETTO_RETURN_IF_ERROR(fill(entry, submission));
  return &cache_.emplace(key, std::move(entry)).first->second;
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

Result<std::shared_ptr<PendingOperation>> Group::submit(Submission& submission) {
  if (!failure_.ok()) return failure_;
  close_gate();
  Result<CacheEntry*> entry = entry_for(submission);
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
  fail(in_context(failed.get(), failed->request.status), true);
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
