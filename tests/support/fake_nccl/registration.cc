// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Memory that the double of NCCL makes, and the registrations of its communicators: see fake.h.

#include <algorithm>
#include <map>
#include <utility>

#include "tests/support/fake_nccl/fake.h"

extern "C" stretto::nccl::ResultCode ncclCommGetAsyncError(stretto::nccl::Comm comm,
                                                           stretto::nccl::ResultCode* state);

namespace stretto::fake_nccl {
namespace {

constexpr ResultCode kSystemError = 2;
constexpr ResultCode kInvalidArgument = 4;

struct Registration {
  Comm comm = nullptr;
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Keys: handles.
std::map<std::uintptr_t, Registration>& registrations() {
  static auto* const all = new std::map<std::uintptr_t, Registration>;
  return *all;
}

bool is_in_progress(Comm comm) {
  ResultCode state = nccl::kSuccess;
  return ncclCommGetAsyncError(comm, &state) != 0 || state == nccl::kInProgress;
}

template <class Which>
bool any_registration(const Which& which) {
  for (const auto& [handle, one] : registrations()) {
    if (which(one)) return true;
  }
  return false;
}

}  // namespace

bool is_registered(Comm comm, const void* data) {
  const auto* const at = static_cast<const std::byte*>(data);
  return any_registration([&](const Registration& one) {
    return one.comm == comm && at >= one.begin && at < one.begin + one.bytes;
  });
}

void forget_registrations(Comm comm) {
  const auto forgotten =
      std::erase_if(registrations(), [&](const auto& one) { return one.second.comm == comm; });
  shared().control.registrations -= static_cast<int>(forgotten);
}

}  // namespace stretto::fake_nccl

using namespace stretto::fake_nccl;

extern "C" {

int cuMemAlloc_v2(std::uint64_t* pointer, std::size_t bytes);

ResultCode ncclMemAlloc(void** data, std::size_t bytes) {
  std::uint64_t pointer = 0;
  if (cuMemAlloc_v2(&pointer, bytes) != 0) return kSystemError;
  *data = reinterpret_cast<void*>(pointer);
  // New memory need not be zero.
  std::fill_n(reach(*data), bytes, std::byte{0xEE});
  const std::lock_guard held(shared().mutex);
  ++shared().control.made_blocks;
  return stretto::nccl::kSuccess;
}
ResultCode ncclMemFree(void* data) {
  const std::lock_guard held(shared().mutex);
  if (any_registration([&](const Registration& one) { return one.begin == data; })) {
    shared().misused("memory is freed that a communicator knows");
  }
  --shared().control.made_blocks;
  return stretto::nccl::kSuccess;
}
ResultCode ncclCommRegister(Comm comm, void* data, std::size_t bytes, void** handle) {
  if (!has_context()) return kInvalidArgument;
  const bool is_busy = is_in_progress(comm);
  const std::lock_guard held(shared().mutex);
  if (is_busy) shared().misused("memory is registered while a launch is under way");
  if (is_finalized(comm)) shared().misused("memory is registered with what is finalized");
  static std::uintptr_t last = 0;
  *handle = reinterpret_cast<void*>(++last);
  registrations()[last] = {comm, static_cast<const std::byte*>(data), bytes};
  ++shared().control.registrations;
  return stretto::nccl::kSuccess;
}
ResultCode ncclCommDeregister(Comm comm, void* handle) {
  const bool is_busy = is_in_progress(comm);
  const std::lock_guard held(shared().mutex);
  if (is_busy) shared().misused("memory is forgotten while a launch is under way");
  if (is_finalized(comm)) shared().misused("memory is forgotten by what is finalized");
  const auto found = registrations().find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == registrations().end() || found->second.comm != comm) {
    shared().misused("a registration is ended that is none of the communicator's");
    return kInvalidArgument;
  }
  registrations().erase(found);
  --shared().control.registrations;
  return stretto::nccl::kSuccess;
}
}
