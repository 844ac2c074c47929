// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Memory that scheduled backends allocate.

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/memory_limit.h"
#include "stretto/communicator/arguments.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/group/packing.h"

namespace stretto::communicator {
namespace {

Memory memory_of(transport::Region region) { return {std::move(region.owner), region.bytes}; }

}  // namespace

// Retries for a while: freed memory is available again when the other ranks have heard of it, and a
// momentary shortage of this process may end.
Result<transport::Region> ScheduledBackend::allocate_region(std::size_t bytes,
                                                            transport::MemoryKind kind) {
  const bool is_on_device = kind == transport::MemoryKind::device;
  const auto allocate_now = [&]() -> Result<transport::Region> {
    transport::MappableMemory::Mapping made;
    // Without the lock, as it waits for the device.
    if (is_on_device) {
      STRETTO_ASSIGN_OR_RETURN(made, options_.device->create(bytes));
    }
    const group::EngineLock held(*engine_);
    transport::Endpoint& transport = engine_->transport();
    if (is_on_device) return transport.memory().share_on_device(std::move(made), bytes);
    return transport.allocate(bytes);
  };
  Result<transport::Region> region = allocate_now();
  const auto may_fit_soon = [&] {
    if (region.status().code() == StatusCode::system) return true;
    if (region.status().code() != StatusCode::out_of_memory) return false;
    const auto left = find_memory_left();
    return is_on_device || !left || bytes <= left->limit_bytes;
  };
  // The other ranks hear of freed memory by the next turn of their heartbeat.
  constexpr int kAttempts = 20;
  const Duration pause = engine_->options().heartbeat / (kAttempts / 2);
  for (int i = 0; i < kAttempts && may_fit_soon(); ++i) {
    (void)engine_->drive([] { return false; }, Deadline::after(pause));
    region = allocate_now();
  }
  return region;
}

void ScheduledBackend::lend_scratch(CollectiveCall& call) {
  if (!call.packing || !call.packing->is_on_device() || !maps_devices()) return;
  group::Packing& packing = *call.packing;
  const std::size_t bytes = packing.destination == nullptr ? packing.bytes() : 0;
  if (bytes == 0 || !reaches_devices_) return;
  group::EngineLock held(*engine_);
  const auto fits = [&](const auto& region) { return region.bytes.size() >= bytes; };
  auto found = std::ranges::find_if(*scratch_, fits);
  if (found == scratch_->end()) {
    held.unlock();
    auto made = allocate_region(group::scratch_bytes_for(bytes), transport::MemoryKind::device);
    made.status()
        .with_context(fmt::format("rank {}: {}: {} bytes of scratch on the device",
                                  job_rank(rank()).value(), name(call.operation.collective), bytes))
        .or_throw();
    held.lock();
    found = scratch_->insert(scratch_->end(), std::move(*made));
  }
  packing.scratch = *found;
}

bool ScheduledBackend::lacks_scratch(const group::Group::Submission& submission,
                                     StatusCode code) const {
  const bool is_short = code == StatusCode::system || code == StatusCode::out_of_memory;
  return is_short && group_->failure().ok() && submission.packing &&
         submission.packing->lacks_scratch();
}

Status ScheduledBackend::lend_scratch(group::Packing& packing, group::EngineLock& held) {
  held.unlock();
  auto made = allocate_region(group::scratch_bytes_for(packing.bytes()));
  held.lock();
  if (made.ok()) packing.scratch = std::move(*made);
  return made.status();
}

Memory ScheduledBackend::allocate(std::size_t bytes, std::optional<int> device) {
  const Caller who{.rank = rank(), .operation = "allocate"};
  check(who, !device || devices_ != nullptr,
        "only a job with the backend \"cuda\" or \"nccl\" gives memory of devices");
  if (device && *device != devices_->device()) {
    refuse(who, fmt::format("device {} of this process is not the one that this rank works on, "
                            "which is {}",
                            *device, devices_->device()));
  }
  if (!device) return memory_of(allocate_region(bytes).or_throw());
  const auto give = [&](auto made) {
    made.status()
        .with_context(fmt::format("rank {}: allocate {} bytes on device {}",
                                  job_rank(rank()).value(), bytes, *device))
        .or_throw();
    return std::move(*made);
  };
  if (device_library_ == nullptr) {
    return memory_of(give(allocate_region(bytes, transport::MemoryKind::device)));
  }
  auto data = give(device_library_->allocate(bytes));
  std::byte* const begin = data.get();
  return {std::move(data), {begin, bytes}};
}

transport::RemoteAddress ScheduledBackend::locate(ConstByteSpan own) const {
  const group::EngineLock held(*engine_);
  return engine_->transport().memory().locate(own.data(), own.size());
}

std::shared_ptr<std::byte> ScheduledBackend::map(Rank rank, transport::RemoteAddress address,
                                                 std::size_t bytes,
                                                 const std::optional<Duration>& timeout) {
  const Rank peer = job_rank(rank);
  transport::ShortageTimer timer;
  std::shared_ptr<std::byte> mapped;
  const auto try_to_map = [&]() STRETTO_REQUIRES(group::engine_held) {
    transport::SharedMemory& memory = engine_->transport().memory();
    if (!address.valid() || !memory.reaches(peer) || !group_->failure().ok()) return true;
    std::byte* const data = memory.resolve(peer, address, bytes);
    if (data == nullptr) return !timer.judge(memory.find_shortage(peer, address)).ok();
    mapped = {memory.hold(peer, address), data};
    return true;
  };
  if (!engine_->drive(try_to_map, deadline(timeout))) {
    status_of(StatusCode::timeout, "rank {}: symmetric memory of rank {} never arrived",
              job_rank(this->rank()).value(), peer.value())
        .or_throw();
  }
  return mapped;
}

}  // namespace stretto::communicator
