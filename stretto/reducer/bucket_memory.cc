// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_memory.h"

#include <cstring>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/codec/arithmetic.h"

namespace stretto {
namespace {

template <class T>
std::span<T> elements(const View& view) {
  return {reinterpret_cast<T*>(view.data), view.count};
}
template <class T>
std::span<const T> elements(const ConstView& view) {
  return {reinterpret_cast<const T*>(view.data), view.count};
}

template <class Number>
void convert_floats(const View& to, const ConstView& from) {
  if (to.dtype == dtype_of<Number>) {
    codec::narrow(elements<float>(from), elements<Number>(to));
  } else {
    codec::widen(elements<Number>(from), elements<float>(to));
  }
}

}  // namespace

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

void HostBuckets::convert(const View& to, const ConstView& from) {
  const DType narrow = to.dtype == DType::f32 ? from.dtype : to.dtype;
  STRETTO_CHECK(narrow == DType::f16 || narrow == DType::bf16, "{} are not converted to {}",
                name(from.dtype), name(to.dtype));
  if (narrow == DType::f16) return convert_floats<Half>(to, from);
  convert_floats<BFloat16>(to, from);
}

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
