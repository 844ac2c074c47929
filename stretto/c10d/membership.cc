// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/printable.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/flight_recorder.h"

namespace stretto::c10d_backend {
namespace {

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> next = 0;
  return next++;
}

// The blocks for copies of tensors on a device, on which operations work; null if they work on the
// tensors themselves.
std::shared_ptr<DeviceBlocks> blocks_for(const std::shared_ptr<Communicator>& communicator,
                                         const std::shared_ptr<DeviceBlocks>& on_host) {
  if (!communicator->device()) return on_host;
  if (!communicator->maps_devices()) return nullptr;
  return std::make_shared<DeviceBlocks>(communicator, DeviceBlocks::Place::device);
}

// Explains the numbers by which failures name the ranks of a group; empty if nothing is to be said.
std::string note_of(const std::vector<int>& named, const std::vector<uint64_t>& global) {
  const auto size = static_cast<int>(named.size());
  if (named != numbers_to<int>(size)) {
    return fmt::format(
        "(Ranks have the numbers that they had before shrink_group(): what were {} are ranks 0 to "
        "{} of this group.)",
        fmt::join(named, ", "), size - 1);
  }
  if (global == numbers_to<uint64_t>(size)) return {};
  return fmt::format("(The ranks of this group are, in the job: {}.)", fmt::join(global, ", "));
}

// `note`, after the name of the group if the program has described it.
std::string note_of(const std::string& description, const std::string& note) {
  constexpr std::size_t kMost = 64;
  const bool is_given = description != "undefined" && description != "default_pg";
  if (description.empty() || !is_given) return note;
  return fmt::format("(This is the group \"{}\".){}{}", printable(description.substr(0, kMost)),
                     note.empty() ? "" : " ", note);
}

}  // namespace

Membership::Membership(std::unique_ptr<Communicator> made, std::vector<int> named,
                       std::vector<uint64_t> global, std::shared_ptr<const AbortHooks> abort_hooks)
    : named_ranks(std::move(named)),
      global_ranks(std::move(global)),
      communicator(std::move(made)),
      host_blocks(std::make_shared<DeviceBlocks>(communicator, DeviceBlocks::Place::host)),
      blocks(blocks_for(communicator, host_blocks)),
      serial_(next_serial()) {
  shared->communicator = communicator;
  shared->abort_hooks = std::move(abort_hooks);
  shared->job_rank = static_cast<int>(global_ranks[rank()]);
  shared->named_rank = named_ranks[rank()];
  const MutexLock lock(shared->mutex);
  shared->rank_note = note_of(named_ranks, global_ranks);
}

void Membership::end(std::shared_ptr<Membership> members) {
  const std::shared_ptr<Shared> shared = members->shared;
  const std::shared_ptr<DeviceBlocks> host_blocks = members->host_blocks;
  const std::shared_ptr<DeviceBlocks> blocks = members->blocks;
  shared->are_hooks_due = false;
  shared->is_over = true;
  members.reset();  // Operations in flight end with it.
  host_blocks->close();
  if (blocks != nullptr) blocks->close();
  shared->driver.stop();
}

std::vector<uint64_t> Membership::global_ranks_of(const std::vector<int>& ranks) const {
  std::vector<uint64_t> found;
  for (const int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size(), "stretto: rank ", rank, " is not one of the ",
                      size(), " ranks of this group");
    found.push_back(global_ranks[rank]);
  }
  return found;
}

std::shared_ptr<const ObservedGroup> Membership::flight_group(const std::string& id,
                                                              const std::string& name) {
  const MutexLock guard(mutex_);
  // PyTorch names a group after it has made its backend, and before it hands it out.
  if (flight_group_ == nullptr) {
    const MutexLock lock(shared->mutex);
    shared->rank_note = note_of(name, shared->rank_note);
  }
  if (flight_group_ == nullptr || flight_group_->id != id || flight_group_->name != name) {
    ObservedGroup group{serial_, id, name, {}, rank()};
    for (const uint64_t each : global_ranks) group.ranks.emplace_back(static_cast<int>(each));
    flight_group_ = std::make_shared<const ObservedGroup>(std::move(group));
  }
  return flight_group_;
}

void Membership::run(c10::function_ref<void(Communicator&)> call) const {
  PendingWorks::drive_all_but(&shared->pending);
  try {
    call(*communicator);
  } catch (const Error& error) {
    if (communicator->has_failed()) shared->note_failure(error.status());
    throw_for_torch(shared->told(error.status()));
  }
}

uint64_t Membership::record(communicator::FlightEntry entry) {
  // Read once: other threads count as well.
  const bool is_transfer = entry.message_to || entry.message_from;
  const uint64_t number = ++(is_transfer ? transfers_ : collectives_);
  entry.collective_number = is_transfer ? collectives_.load() : number;
  entry.message_number = is_transfer ? number : transfers_.load();
  return flight_entries().record(std::move(entry));
}

}  // namespace stretto::c10d_backend
