// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/operation_queue.h"

#include <algorithm>
#include <utility>

#include <fmt/compile.h>
#include <fmt/format.h>

namespace stretto::group {

void OperationQueue::begin_numbering() {
  next_sequence_ = engine_->options().first_sequence;
  past_.clear();
  ended_ = 0;
  ended_noted_ = 0;
  reported_ = 0;
  is_set_up_ = true;
}

std::shared_ptr<PendingCollective> OperationQueue::pooled() {
  if (auto idle = find_idle(pool_)) return idle;
  return pool_.emplace_back(std::make_shared<PendingCollective>(engine_, membership_->group));
}

Status OperationQueue::lend_scratch(Packing& packing) {
  if (!packing.lacks_scratch()) return {};
  STRETTO_ASSIGN_OR_RETURN(packing.scratch, scratch_.take(packing.bytes(), engine_->transport()));
  return {};
}

void OperationQueue::push(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry) {
  queue_.push({std::move(collective), &entry});
  ++entry.in_use;
  engine_->submitted();
}

void OperationQueue::adopt(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry) {
  ++entry.in_use;
  running_.push_back({std::move(collective), &entry, cache_->take(entry)});
  engine_->submitted();
  for (const Rank member : membership_->members) {
    if (member != engine_->transport().rank()) engine_->transport().notify(member);
  }
  report(running_.back());
}

bool OperationQueue::may_start(const Item& item) const {
  if (running_.empty()) return true;
  const auto is_here = [](const Item& other) {
    return other.execution->end_on_device() == nullptr;
  };
  // A program that has dropped its Works takes the end of a barrier for the end of all operations
  // before it. Operations that only the device has still to run are excepted, as the device may
  // wait for what the program does after the barrier. A monitored barrier does not wait: it is to
  // explain why an operation does not end.
  const OperationDescriptor& operation = item.collective->operation();
  const bool ends_others =
      operation.collective == Collective::barrier && operation.layout != kMonitoredLayout;
  if (ends_others && std::ranges::any_of(running_, is_here)) return false;
  if (item.entry->runs_alone() || running_.front().entry->runs_alone()) return false;
  return running_.size() < kRunningMax ||
         (running_.size() < kLaunchedMax &&
          std::cmp_less(std::ranges::count_if(running_, is_here), kRunningMax));
}

bool OperationQueue::start_ready(execution::Turn& turn) {
  bool moved = false;
  while (!queue_.empty() && may_start(queue_.front())) {
    Status packed;
    if (auto& packing = queue_.front().collective->packing; packing && !packing->is_packed()) {
      if (turn.is_over()) return moved;
      moved = true;
      packed = packing->pack(turn);
      if (packed.ok() && !packing->is_packed()) return moved;
    }
    // Before it counts as running, as take() may throw for lack of memory.
    queue_.front().execution = cache_->take(*queue_.front().entry);
    Item& item = running_.emplace_back(std::move(queue_.front()));
    queue_.pop();
    moved = true;
    report(item);
    if (packed.ok()) {
      if (auto& packing = item.collective->packing) {
        item.collective->call.mark = packing->mark.take();
      }
      item.execution->start(item.collective->call, turn);
    } else {
      item.execution->fail(packed);
    }
  }
  return moved;
}

bool OperationQueue::advance(execution::Turn& turn) {
  bool moved = false;
  for (std::size_t i = 0; i < running_.size();) {
    execution::Execution& execution = *running_[i].execution;
    moved = execution.advance(turn) || moved;
    if (!execution.status().ok()) return true;
    if (!execution.ended()) {
      ++i;
      continue;
    }
    moved = true;
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
  return moved;
}

void OperationQueue::retire(std::size_t index) {
  PendingCollective& collective = *running_[index].collective;
  past_.add(collective.sequence(), collective.operation(),
            [&](std::uint32_t sequence) { return is_running(sequence); });
  const std::uint32_t last = last_ended();
  if (last == 0 || transport::precedes(last, collective.sequence())) {
    set_ended(collective.sequence());
  }
  // If this throws for lack of memory, the collective stays in running_.
  collective.finish(Status());
  Item item = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  --item.entry->in_use;
  cache_->keep(*item.entry, std::move(item.execution));
  if (collective.packing) {
    scratch_.give_back(std::move(collective.packing->scratch));
    collective.packing.reset();
  }
}

std::shared_ptr<DeviceEnd> OperationQueue::end_on_device(const PendingOperation& operation) const {
  const auto is_it = [&](const Item& item) { return item.collective.get() == &operation; };
  const auto found = std::ranges::find_if(running_, is_it);
  return found == running_.end() ? nullptr : found->execution->end_on_device();
}

const OperationQueue::Item* OperationQueue::find_failed() const {
  const auto found = std::ranges::find_if(
      running_, [](const Item& item) { return !item.execution->status().ok(); });
  return found == running_.end() ? nullptr : &*found;
}

void OperationQueue::take_completions() {
  for (const Item& item : running_) item.execution->take_completions();
}

// Ranks that abandoned a later operation have done all that this rank's earlier operation needs of
// them. On mapped memory it can be ended without them, and then it ends well.
void OperationQueue::fail(const Status& reason, bool of_others) {
  for (const Item& item : running_) {
    PendingCollective& collective = *item.collective;
    if (of_others && item.execution->end_without_transport()) {
      execution::Turn turn(engine_->transport(), execution::kUnlimited);
      if (collective.packing && !collective.packing->is_unpacked()) {
        collective.packing->unpack(turn);
      }
      collective.finish(Status());
      continue;
    }
    item.execution->fail(reason);
    if (item.execution->ended()) collective.finish(reason);
  }
  for (; !queue_.empty(); queue_.pop()) {
    queue_.front().collective->packing.reset();  // This also forgets the mark of the call.
    queue_.front().collective->finish(reason);
  }
}

bool OperationQueue::release_buffers(const Status& reason, execution::Turn& turn) {
  bool waits = false;
  for (const Item& item : running_) {
    if (item.collective->done()) continue;
    item.execution->advance(turn);
    if (item.execution->ended()) item.collective->finish(reason);
    waits = true;
  }
  return waits;
}

const PendingCollective* OperationQueue::oldest() const {
  if (!running_.empty()) return running_.front().collective.get();
  if (!queue_.empty()) return queue_.front().collective.get();  // It is still being packed.
  return nullptr;
}

std::vector<Rank> OperationQueue::waiting_for(const PendingOperation& operation) const {
  for (const Item& item : running_) {
    if (item.collective.get() == &operation) return item.execution->waiting_for();
  }
  const bool is_queued = operation.sequence() != transport::kPointToPoint;
  if (is_queued && !running_.empty()) return running_.front().execution->waiting_for();
  return membership_->others();
}

bool OperationQueue::release_mappings() {
  bool all = true;
  for (const Item& item : running_) all = item.execution->release_mappings() && all;
  return all;
}

bool OperationQueue::is_of_this_numbering(std::uint32_t sequence) const {
  return (sequence >= transport::kSetUpSequence) != is_set_up_;
}

bool OperationQueue::has_ended(std::uint32_t sequence) const {
  if (!has_been_submitted(sequence) || is_running(sequence)) return false;
  return queue_.empty() || transport::precedes(sequence, queue_.front().collective->sequence());
}

const OperationDescriptor* OperationQueue::find_running(std::uint32_t sequence) const {
  for (const Item& item : running_) {
    if (item.collective->sequence() == sequence) return &item.collective->operation();
  }
  return nullptr;
}

const OperationDescriptor* OperationQueue::find(std::uint32_t sequence) const {
  const OperationDescriptor* running = find_running(sequence);
  return running != nullptr ? running : past_.find(sequence);
}

std::string OperationQueue::name_of(const PendingOperation& operation) const {
  if (!is_set_up_) return "the set-up of the communicator";
  if (operation.sequence() == transport::kPointToPoint) return describe(operation.operation());
  return fmt::format("{} #{}", describe(operation.operation()), operation.sequence());
}

std::string OperationQueue::name_of_ended() const {
  // An operation on the fast path leaves only its number.
  const std::uint32_t ended = last_ended();
  const OperationDescriptor* past = past_.find(ended);
  return past != nullptr ? fmt::format("{} #{}", describe(*past), ended)
                         : fmt::format("#{}", ended);
}

std::string OperationQueue::between_operations() const {
  if (!is_set_up_) return "while setting up the communicator";
  if (last_ended() == 0) return "before the first collective";
  return fmt::format("between operations, after {}", name_of_ended());
}

// Reports to the launcher. "all_reduce(sum f32 [1024]) #7" is the last that it knows of a rank that
// is killed.
void OperationQueue::report(const Item& item) {
  const auto& report_activity = engine_->options().report_activity;
  if (!report_activity) return;
  reported_ = item.collective->sequence();
  if (!is_set_up_) return report_activity(name_of(*item.collective));
  // Not by name_of(), which describes the operation again: that takes longer than starting it.
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), FMT_COMPILE("{} #{}"), item.entry->name, reported_);
  report_activity({text.data(), text.size()});
}

// Operations on the fast path are reported only here, now and then.
void OperationQueue::note_ended(TimePoint now) {
  const std::uint32_t ended = last_ended();
  if (ended == ended_noted_) return;
  ended_noted_ = ended;
  ended_at_ = now;
  const auto& report_activity = engine_->options().report_activity;
  if (!report_activity || !is_set_up_) return;
  if (reported_ != 0 && !transport::precedes(reported_, ended)) return;
  reported_ = ended;
  report_activity(fmt::format("#{} or one soon after it", ended));
}

}  // namespace stretto::group
