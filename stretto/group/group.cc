// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/group.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "stretto/base/printable.h"

namespace stretto::group {
namespace {

Planner::Setting setting_of(const execution::Membership& membership,
                            const Group::Options& options) {
  return {.rank = membership.rank,
          .selector = {.rank_count = static_cast<int>(membership.members.size()),
                       .hosts = hosts_of(options.hosts, membership.members),
                       .links = options.links,
                       .segment_bytes = options.segment_bytes},
          .verification = options.verification};
}

std::string in_texts(const std::string& name) {
  constexpr std::size_t kMost = 64;
  return name.empty() ? name : fmt::format("group \"{}\"", printable(name.substr(0, kMost)));
}

// The call refers to `packing`, which lives as long as the collective.
execution::Call call_of(const Group::Submission& submission, std::uint32_t sequence,
                        const std::optional<Packing>& packing) {
  using transport::BufferRef;
  execution::Call call{.operation = submission.operation,
                       .input = BufferRef::own(submission.input.data()),
                       .output = BufferRef::own(submission.output.data()),
                       .sequence = sequence};
  if (!packing || !packing->is_on_device()) return call;
  call.input.kind = call.output.kind = packing->kind;
  call.parts = &packing->parts;
  return call;
}

}  // namespace

Group::Group(std::shared_ptr<Engine> engine, execution::Membership membership,
             const Options& options)
    : engine_(std::move(engine)),
      membership_(std::move(membership)),
      ancestors_(options.ancestors),
      name_(in_texts(options.name)),
      cache_(membership_, engine_->transport(), setting_of(membership_, options)),
      operations_(engine_, membership_, cache_),
      lane_(*engine_, operations_),
      mailbox_(engine_, membership_),
      inquiry_(*engine_, membership_),
      agreement_(size(), membership_.rank),
      departed_(membership_.members.size()) {
  try {
    engine_->add(*this);
    // The transport does not repeat losses from before.
    for (const Rank member : membership_.members) {
      const auto peer = engine_->transport().peer_status(member);
      if (peer.status.ok()) continue;
      peer.left ? member_left(member, peer.status) : member_lost(member, peer.status);
    }
  } catch (...) {
    engine_->remove(*this);
    throw;
  }
}

void Group::leave() {
  if (is_leaving_) return;
  tell_what_has_failed();
  tell_last_operation();
  is_leaving_ = true;
  fail(Status(StatusCode::aborted, "the communicator was destroyed with operations in flight"),
       false);
}

bool Group::has_ended() const {
  return is_leaving_ && std::ranges::all_of(operations_.running(), [](const auto& item) {
           return item.collective->done();
         });
}

Group::~Group() {
  leave();
  engine_->remove(*this);
  execution::Turn turn = engine_->turn_of(execution::kUnlimited);
  while (operations_.release_buffers(failure_, turn)) {
  }
  engine_->transport().forget(membership_.group, membership_.members, failure_, farewell_);
}

bool Group::descends_from(std::uint64_t group) const {
  return std::ranges::find(ancestors_, group) != ancestors_.end();
}

void Group::begin_numbering() {
  lane_.close();
  operations_.begin_numbering();
  parent_in_set_up_.reset();
  std::erase_if(beliefs_, [](const Belief& b) { return b.sequence >= transport::kSetUpSequence; });
  if (!told_in_set_up_.ok()) fail(told_in_set_up_, true);
  open_lane();
}

void Group::use_links(const LinkModel& links) {
  lane_.close();
  cache_.use_links(links);
  shrink_cache();  // Plans chosen by the old costs.
  open_lane();
}

void Group::use_windows(execution::Windows windows) {
  cache_.use_windows(std::move(windows));
  shrink_cache();  // Plans that send messages instead.
}

void Group::use_library(std::shared_ptr<CollectiveLibrary> library) {
  cache_.use_library(std::move(library));
  shrink_cache();  // Plans made without the library.
}

void Group::use_device(std::unique_ptr<execution::KernelQueue> queue,
                       std::vector<std::int32_t> devices) {
  cache_.use_device(std::move(queue), std::move(devices));
}

bool Group::must_be_asked() const {
  return std::ranges::any_of(operations_.running(), [](const auto& item) {
    return !item.collective->done() && item.execution->must_be_asked();
  });
}

void Group::shrink_cache() {
  lane_.forget_all();
  cache_.shrink();
}

// Stays closed while something is in flight, and for good if the group has failed.
void Group::open_lane() {
  if (is_one_team() && failure_.ok() && operations_.is_empty()) {
    lane_.open();
  }
}

// Memory that other ranks have freed stays mapped while an execution holds it, so that no access
// goes to an address that is no longer mapped. When the set of regions has changed, executions drop
// their mappings and find them anew when they next run. If an execution is running or the fast path
// is in use, this is tried again in the next turn.
void Group::release_mappings() {
  const std::uint64_t generation = engine_->transport().memory().generation();
  bool was_open = false;
  if (generation == memory_generation_ || !lane_.try_close(was_open)) return;
  const bool idle = cache_.release_mappings();
  if (operations_.release_mappings() && idle) memory_generation_ = generation;
  if (was_open) lane_.open();
}

// Plans an operation of a new kind without the lock, as that may take tenths of a second in which
// other threads submit operations and take turns of progress.
Result<PlanCache::Entry*> Group::entry_for(Submission& submission, EngineLock& held) {
  while (true) {
    if (!submission.algorithm.empty()) {
      STRETTO_ASSIGN_OR_RETURN(submission.operation.algorithm,
                               cache_.planner()->number_of(submission.operation, !submission.shares,
                                                           submission.algorithm));
    }
    if (auto* found = cache_.find(submission.operation, submission.shares)) return found;
    const std::shared_ptr<const Planner> planner = cache_.planner();
    held.unlock();
    Result<Plans> plans =
        planner->plan(submission.operation, submission.shares, submission.algorithm);
    held.lock();
    if (!failure_.ok()) return failure_;
    if (!plans.ok()) return plans.status();
    if (planner != cache_.planner()) continue;  // Planned by outdated settings.
    // Another thread may have added it meanwhile.
    if (auto* found = cache_.find(submission.operation, submission.shares)) return found;
    lane_.close();
    if (cache_.is_full()) shrink_cache();
    return &cache_.add(submission.operation, submission.shares, std::move(*plans));
  }
}

// Lends scratch and checks the buffers before the operation begins. The lane is closed.
Status Group::prepare(PlanCache::Entry& entry, Submission& submission) {
  if (submission.packing) {
    Packing& packing = *submission.packing;
    STRETTO_RETURN_IF_ERROR(operations_.lend_scratch(packing));
    const bool is_lent = !packing.scratch.bytes.empty();
    if (is_lent && packing.parts.has_sources()) submission.input = packing.input();
    if (is_lent && !packing.parts.targets.empty()) submission.output = packing.output();
  }
  if (!entry.runs_alone()) return {};  // Operations by messages take any buffers.
  return entry.mapped->check_buffers(submission.input.data(), submission.output.data());
}

Result<std::shared_ptr<PendingOperation>> Group::submit(Submission& submission, EngineLock& held) {
  if (!failure_.ok()) return failure_;
  Result<PlanCache::Entry*> entry = entry_for(submission, held);
  lane_.close();
  const Status status = entry.ok() ? prepare(**entry, submission) : entry.status();
  if (!status.ok()) {
    open_lane();
    return status;
  }
  const OperationDescriptor& operation = submission.operation;
  // Allocations come first: once a number is taken, the other ranks rely on the operation.
  std::shared_ptr<PendingCollective> collective = operations_.pooled();
  operations_.push(collective, **entry);
  const std::uint32_t sequence = operations_.number_next();
  collective->begin(operation, sequence, submission.deadline);
  collective->packing = std::move(submission.packing);
  collective->call = call_of(submission, sequence, collective->packing);
  const bool runs_inline =
      std::max(submission.input.size(), submission.output.size()) <= kInlineBytes;
  const bool is_plain = operation.algorithm == 0 && operation.layout == 0 && !collective->packing;
  if (is_plain && runs_inline && (*entry)->runs_alone()) lane_.remember(operation, **entry);
  return std::shared_ptr<PendingOperation>(std::move(collective));
}

// The caller does the little that can be done at once. Threads that wait or poll, or the progress
// thread, do the rest. If there is a progress thread, a large operation is not even announced here,
// since that takes system calls.
void Group::run_inline(std::size_t bytes) {
  try {
    if (bytes <= kInlineBytes) {
      advance(engine_->turn_of(execution::kTurnBytes));
    } else if (!engine_->has_progress_thread()) {
      advance(engine_->turn_of(kInlineBytes));
    }
  } catch (const std::bad_alloc&) {
    // The call must not throw, as that would mean that it has begun nothing. A thread that waits
    // takes the same turn again.
  }
}

Result<std::shared_ptr<PendingOperation>> Group::submit(const Mailbox::Message& message) {
  if (!failure_.ok()) return failure_;
  return std::shared_ptr<PendingOperation>(mailbox_.submit(message));
}

bool Group::advance(execution::Turn turn) {
  if (is_one_team()) release_mappings();
  // While a device still uses buffers, nothing counts as moved, so that waiting threads sleep and
  // see their deadlines.
  if (!failure_.ok()) return operations_.release_buffers(failure_, turn) && !must_be_asked();
  bool moved = false;
  try {
    lane_.adopt_parked();
    moved = operations_.start_ready(turn);
    moved = mailbox_.advance() || moved;
    moved = operations_.advance(turn) || moved;
  } catch (const std::bad_alloc&) {
    // Operations that have begun cannot go on, and other ranks wait for them.
    const Rank self = membership_.job_rank(membership_.rank);
    fail(in_context(oldest(), {StatusCode::out_of_memory, "there is no memory left", self}), true);
    return true;
  }
  if (const auto* failed = operations_.find_failed()) {
    fail(in_context(failed->collective.get(), failed->execution->status()), true);
    return true;
  }
  open_lane();
  if (!retire_messages()) return true;
  if (any_departed_) check_departed();
  return moved;
}

// A failed message fails the group, so that its peer hears of it. Returns whether the group goes
// on.
bool Group::retire_messages() {
  const auto failed = mailbox_.retire();
  if (failed == nullptr) return true;
  fail(in_context(failed.get(), mailbox_.failure()), true);
  return false;
}

}  // namespace stretto::group
