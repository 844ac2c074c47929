// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_memory.h"

#include <cstring>
#include <utility>

#include "stretto/codec/arithmetic.h"

namespace stretto {

Memory HostBuckets::allocate(Communicator& communicator, std::size_t bytes) {
  return communicator.allocate_bytes(bytes);
}

Memory HostBuckets::allocate_copy(std::size_t bytes) {
  const std::shared_ptr<std::byte[]> made(new std::byte[bytes]);
  return {made, {made.get(), bytes}};
}

void HostBuckets::copy(ByteSpan to, ConstByteSpan from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

void HostBuckets::convert(const View& to, const ConstView& from) { codec::convert(to, from); }

void HostBuckets::clear(ByteSpan bytes) {
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

bool HostBuckets::is_zero(ConstByteSpan bytes) const {
  return bytes.empty() || (bytes.front() == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

Status HostBuckets::end(Work& work) { return std::exchange(work, Work()).wait_status(); }

BucketMemory& host_buckets() {
  static HostBuckets buckets;
  return buckets;
}

}  // namespace stretto
