// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/registered_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "stretto/base/clock.h"
#include "stretto/base/log.h"

namespace stretto::nccl {
namespace {

// For how long a communicator may be busy with a call that other ranks are late for.
constexpr Duration kBusyTime = std::chrono::seconds(10);
// And with its end, which waits for graphs of the program that hold its calls.
constexpr Duration kEndingTime = std::chrono::seconds(2);

}  // namespace

// While NCCL is still taking a call, it takes no other.
template <class Use>
bool RegisteredMemory::when_ready(const Use& use) {
  TimePoint begun = Clock::now();
  bool was_ending = false;
  while (true) {
    {
      const MutexLock held(comm_->mutex);
      if (comm_->comm == nullptr && !comm_->is_ending) return true;
      if (comm_->is_ending) {
        if (!std::exchange(was_ending, true)) begun = Clock::now();
      } else if (nccl_->state_of(comm_->comm) != kInProgress) {
        use(comm_->comm);
        return true;
      }
    }
    if (Clock::now() - begun > (was_ending ? kEndingTime : kBusyTime)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::shared_ptr<std::byte>> RegisteredMemory::allocate(std::size_t bytes) {
  STRETTO_RETURN_IF_ERROR(driver_->check_no_capture());
  frees_.free_all();
  const Driver::Current current(*driver_);
  void* made = nullptr;
  const std::size_t whole = std::max<std::size_t>(bytes, 1);
  const Status allocated =
      nccl_->status_of_call("ncclMemAlloc", nccl_->call.mem_alloc(&made, whole));
  if (!allocated.ok()) {
    STRETTO_RETURN_IF_ERROR(check_memory_left(whole));
    return allocated;
  }
  auto* const begin = static_cast<std::byte*>(made);
  std::shared_ptr<std::byte> block(begin, [this](std::byte* freed) { free(freed); });
  std::shared_ptr<std::byte> data(
      begin, [self = shared_from_this(), block = std::move(block)](std::byte*) mutable {
        self->frees_.add(std::move(block));
      });
  STRETTO_RETURN_IF_ERROR(driver_->clear(made, whole));
  STRETTO_RETURN_IF_ERROR(register_with_comm(data.get(), whole));
  return data;
}

// NCCL has one error for all errors of CUDA: asking the driver for as much memory tells them apart.
Status RegisteredMemory::check_memory_left(std::size_t bytes) const {
  std::uint64_t tried = 0;
  const int result = driver_->call().allocate(&tried, bytes);
  if (result == 0) (void)driver_->call().free(tried);
  return driver_->status_of_call("cuMemAlloc", result);
}

Status RegisteredMemory::register_with_comm(std::byte* data, std::size_t bytes) {
  Block block{.bytes = bytes};
  ResultCode result = kSuccess;
  const bool was_ready = when_ready(
      [&](Comm comm) { result = nccl_->call.comm_register(comm, data, bytes, &block.handle); });
  if (!was_ready) {
    return Status(StatusCode::timeout,
                  "NCCL is busy with an operation that other ranks are late for");
  }
  STRETTO_RETURN_IF_ERROR(nccl_->status_of_call("ncclCommRegister", result));
  const MutexLock held(mutex_);
  blocks_.emplace(data, block);
  return {};
}

bool RegisteredMemory::contains(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  const MutexLock held(mutex_);
  const auto behind = blocks_.upper_bound(at);
  if (behind == blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(behind);
  return at < begin + block.bytes;
}

// A communicator that has ended has forgotten its registrations already.
void RegisteredMemory::free(std::byte* data) {
  const Driver::Current current(*driver_);
  Block block;
  {
    const MutexLock held(mutex_);
    const auto found = blocks_.find(data);
    if (found != blocks_.end()) {
      block = found->second;
      blocks_.erase(found);
    }
  }
  const bool is_forgotten = block.handle == nullptr || when_ready([&](Comm comm) {
                              (void)nccl_->call.comm_deregister(comm, block.handle);
                            });
  if (is_forgotten) {
    (void)nccl_->call.mem_free(data);
  } else {
    log(LogLevel::warning, "{} bytes of a device are not freed: NCCL is busy", block.bytes);
  }
}

}  // namespace stretto::nccl
