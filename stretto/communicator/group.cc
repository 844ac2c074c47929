// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/group.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/check.h"
#include "stretto/communicator/message_execution.h"

namespace stretto::communicator {
namespace {

// Collectives by messages that run at the same time in one group.
constexpr std::size_t kRunningMax = 4;
// Kinds of operations remembered; a program that never repeats itself must not grow for ever.
constexpr std::size_t kCacheMax = 512;
constexpr std::size_t kSegmentBytesMax = 256 * 1024;
constexpr std::size_t kSegmentBytesMin = 32 * 1024;
constexpr std::size_t kScratchBytes = 8 * 1024 * 1024;
constexpr std::size_t kWhole = std::size_t{1} << 62;

// The same on all ranks, since both sides of a message must cut alike: small enough that the
// scratch of a lane stays bounded when every rank sends to every other.
std::size_t message_segment_bytes(int rank_count) {
  return std::clamp(kScratchBytes / static_cast<std::size_t>(rank_count), kSegmentBytesMin,
                    kSegmentBytesMax);
}

// Modelled constants until they are measured at start-up; what matters is their ratio.
schedule::LinkCost link_cost(const Membership& membership, const transport::Transport& transport) {
  bool network = false;
  for (const Rank member : membership.members) {
    network = network || transport.link_name(member) == "tcp";
  }
  schedule::LinkCost cost;
  cost.latency_seconds = network ? 20e-6 : 0.5e-6;
  cost.message_seconds = network ? 3e-6 : 0.2e-6;
  cost.seconds_per_byte = network ? 1 / 2e9 : 1 / 5e9;
  return cost;
}

}  // namespace

bool Group::CacheKey::operator<(const CacheKey& other) const {
  if (in_windows != other.in_windows) return in_windows < other.in_windows;
  static_assert(std::has_unique_object_representations_v<OperationDescriptor>);
  return std::memcmp(&operation, &other.operation, sizeof(operation)) < 0;
}

Group::Group(std::shared_ptr<Engine> engine, Membership membership)
    : engine_(std::move(engine)),
      membership_(std::move(membership)),
      selector_(static_cast<int>(membership_.members.size()),
                link_cost(membership_, engine_->transport())),
      departed_(membership_.members.size()) {
  engine_->add(*this);
}

Group::~Group() {
  engine_->remove(*this);
  const Status gone(StatusCode::aborted,
                    "the communicator was destroyed with operations in flight");
  fail(gone, false);
  engine_->transport().forget(membership_.group, gone);
}

void Group::use_windows(Windows windows) { windows_ = std::move(windows); }

std::shared_ptr<const Plan> Group::make_plan(const schedule::Algorithm& algorithm,
                                             const OperationDescriptor& operation,
                                             std::size_t segment_bytes) {
  schedule::Schedule steps =
      algorithm.build({.rank = membership_.rank,
                       .rank_count = size(),
                       .root = operation.root < 0 ? Rank(0) : Rank(operation.root)});
  return std::make_shared<const Plan>(
      std::move(steps), Plan::Options{.operation = operation, .segment_bytes_max = segment_bytes});
}

Status Group::fill(CacheEntry& entry, const OperationDescriptor& operation,
                   std::string_view algorithm) {
  Result<Choice> choice = selector_.choose(operation, algorithm, windows_.has_value());
  if (!choice.ok()) return choice.status();
  if (choice->messages != nullptr) {
    entry.messages = make_plan(*choice->messages, operation, message_segment_bytes(size()));
    return {};
  }
  if (choice->direct != nullptr)
    entry.mapped.direct = make_plan(*choice->direct, operation, kWhole);
  if (choice->staged != nullptr) {
    // Half a window holds one raw slot per chunk; lines are kept apart by the rounding of slots.
    const std::size_t slots = static_cast<std::size_t>(std::max(1, size()));
    entry.mapped.staged = make_plan(*choice->staged, operation, Window::kHalfBytes / slots - 64);
  }
  return {};
}

Result<Group::CacheEntry*> Group::entry_for(OperationDescriptor& operation,
                                            std::string_view algorithm) {
  if (!algorithm.empty()) {
    Result<Choice> choice = selector_.choose(operation, algorithm, windows_.has_value());
    if (!choice.ok()) return choice.status();
    const schedule::Algorithm* named = choice->messages != nullptr ? choice->messages
                                       : choice->direct != nullptr ? choice->direct
                                                                   : choice->staged;
    operation.algorithm = named->id;
  }
  const CacheKey key{operation, windows_.has_value()};
  const auto found = cache_.find(key);
  if (found != cache_.end()) return &found->second;
  if (cache_.size() >= kCacheMax) shrink_cache();
  CacheEntry entry;
  Status status = fill(entry, operation, algorithm);
  if (!status.ok()) return status;
  return &cache_.emplace(key, std::move(entry)).first->second;
}

void Group::shrink_cache() {
  std::erase_if(cache_, [](const auto& item) { return item.second.in_use == 0; });
}

std::shared_ptr<PendingCollective> Group::pooled() {
  for (const auto& collective : pool_) {
    if (collective.use_count() == 1) return collective;
  }
  return pool_.emplace_back(std::make_shared<PendingCollective>(engine_));
}

Result<std::shared_ptr<PendingOperation>> Group::submit(const Submission& submission) {
  if (!failure_.ok()) return failure_;
  OperationDescriptor operation = submission.operation;
  Result<CacheEntry*> entry = entry_for(operation, submission.algorithm);
  if (!entry.ok()) return entry.status();
  std::shared_ptr<PendingCollective> collective = pooled();
  collective->begin(operation, next_sequence_, submission.deadline);
  collective->call = {.operation = operation,
                      .input = submission.input.data(),
                      .output = submission.output.data(),
                      .sequence = next_sequence_};
  ++next_sequence_;
  ++(*entry)->in_use;
  queue_.push({collective, *entry});
  engine_->submitted();
  // The short way: what can be done at once is done here, by the caller.
  advance();
  return std::shared_ptr<PendingOperation>(std::move(collective));
}

std::shared_ptr<PendingOperation> Group::submit(const Message& message) {
  auto pending = std::make_shared<PendingMessage>(engine_);
  pending->begin(message.operation, transport::kPointToPoint, message.deadline);
  engine_->submitted();
  if (!failure_.ok()) {
    pending->finish(failure_);
    return pending;
  }
  MessageCounts& counts = message.sends ? sent_ : received_;
  pending->peer = message.peer;
  pending->request.peer = membership_.job_rank(message.peer);
  pending->request.key = {.group = membership_.group,
                          .sequence = transport::kPointToPoint,
                          .segment = static_cast<std::uint32_t>(message.tag),
                          .message = counts[{message.peer.value(), message.tag}]++};
  pending->request.operation = message.operation;
  pending->request.outgoing = message.outgoing;
  pending->request.incoming = message.incoming;
  pending->request.owner = pending.get();
  messages_.push_back(pending);
  if (message.sends) {
    engine_->transport().send(pending->request);
  } else {
    engine_->transport().recv(pending->request);
  }
  return pending;
}

// Mapped collectives share the windows' counters, so they run alone.
bool Group::may_start(const Queued& queued) const {
  if (running_.empty()) return true;
  const bool by_messages = queued.entry->messages != nullptr;
  return by_messages && running_.front().entry->messages != nullptr &&
         running_.size() < kRunningMax;
}

void Group::start_ready() {
  while (!queue_.empty() && may_start(queue_.front())) {
    Queued queued = queue_.front();
    queue_.pop();
    CacheEntry& entry = *queued.entry;
    Running& running = running_.emplace_back();
    running.collective = std::move(queued.collective);
    running.entry = &entry;
    if (!entry.idle.empty()) {
      running.execution = std::move(entry.idle.back());
      entry.idle.pop_back();
    } else if (entry.messages != nullptr) {
      running.execution =
          std::make_unique<MessageExecution>(entry.messages, membership_, engine_->transport());
    } else {
      running.execution = std::make_unique<MappedExecution>(entry.mapped, membership_, *windows_,
                                                            engine_->transport());
    }
    report(*running.collective);
    running.execution->start(running.collective->call);
  }
}

bool Group::advance() {
  if (!failure_.ok()) return false;
  start_ready();
  bool moved = false;
  for (std::size_t i = 0; i < running_.size();) {
    Execution& execution = *running_[i].execution;
    moved = execution.advance() || moved;
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
    retire(i);
    start_ready();
  }
  if (!retire_messages()) return true;
  if (any_departed_) check_departed();
  return moved;
}

// Takes out what has ended. A message that failed fails the group, so that its other end hears of
// it. Returns whether the group goes on.
bool Group::retire_messages() {
  for (const auto& message : messages_) {
    if (!message->done() || message->status().ok()) continue;
    fail(in_context(message.get(), message->status()), true);
    return false;
  }
  std::erase_if(messages_, [](const auto& message) { return message->done(); });
  return true;
}

void Group::retire(std::size_t index) {
  Running running = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  running.entry->idle.push_back(std::move(running.execution));
  --running.entry->in_use;
  running.collective->finish(Status());
}

}  // namespace stretto::communicator
