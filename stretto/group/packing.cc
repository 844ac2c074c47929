// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/packing.h"

#include <algorithm>
#include <array>
#include <bit>

#include "stretto/base/round_up.h"
#include "stretto/kernel/copy.h"
#include "stretto/kernel/reduce.h"

namespace stretto::group {
namespace {

constexpr std::size_t kScratchBytesMin = 64 * 1024;
// What a group keeps when nothing is in flight.
constexpr std::size_t kIdleMax = 4;
constexpr std::size_t kBlock = 1024;

// A scaled copy is a product with a block of equal numbers, in the accumulation dtype so that the
// factor is not rounded to f16 or bf16 first.
template <class T>
Status scale_by(double factor, const ConstView& source, std::byte* target) {
  std::array<T, kBlock> factors;
  factors.fill(static_cast<T>(factor));
  for (std::size_t first = 0; first < source.count; first += kBlock) {
    const ConstView part = source.slice(first, std::min(kBlock, source.count - first));
    const std::array<kernel::Input, 2> inputs = {
        kernel::Input{.data = part.data, .dtype = source.dtype},
        kernel::Input{.data = factors.data(), .dtype = dtype_of<T>}};
    void* output = target + first * size_bytes(source.dtype);
    STRETTO_RETURN_IF_ERROR(kernel::reduce({.dtype = source.dtype,
                                            .output_dtype = source.dtype,
                                            .op = ReduceOp::product,
                                            .count = part.count,
                                            .inputs = inputs,
                                            .outputs = {&output, 1},
                                            .store = kernel::Store::cached}));
  }
  return {};
}

Status copy_scaled(double factor, const ConstView& source, std::byte* target) {
  if (factor != 1) {
    return source.dtype == DType::f64 ? scale_by<double>(factor, source, target)
                                      : scale_by<float>(factor, source, target);
  }
  if (source.bytes() > 0 && target != source.data) {
    kernel::copy(target, source.data, source.bytes(), kernel::Store::automatic);
  }
  return {};
}

}  // namespace

std::size_t Packing::source_bytes() const {
  std::size_t bytes = source.bytes();
  for (const ConstView& part : more) bytes += part.bytes();
  return bytes;
}

std::size_t Packing::target_bytes() const {
  std::size_t bytes = 0;
  for (const View& part : targets) bytes += part.bytes();
  return bytes;
}

std::size_t Packing::output_begin() const {
  return apart ? round_up(source_bytes(), kCacheLineBytes) : 0;
}

std::size_t Packing::bytes() const {
  return std::max(source_bytes(), output_begin() + target_bytes());
}

Status Packing::pack() const {
  std::byte* to = place != nullptr ? place : scratch.bytes.data();
  STRETTO_RETURN_IF_ERROR(copy_scaled(factor, source, to));
  to += source.bytes();
  for (const ConstView& part : more) {
    STRETTO_RETURN_IF_ERROR(copy_scaled(factor, part, to));
    to += part.bytes();
  }
  return {};
}

void Packing::unpack() const {
  const std::byte* from = scratch.bytes.data() + output_begin();
  for (const View& target : targets) {
    if (target.bytes() > 0) {
      kernel::copy(target.data, from, target.bytes(), kernel::Store::automatic);
    }
    from += target.bytes();
  }
}

Result<transport::Transport::Region> ScratchPool::take(std::size_t bytes,
                                                       transport::Transport& transport) {
  const auto fits = [&](const auto& region) { return region.bytes.size() >= bytes; };
  const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
  if (found == idle_.end()) {
    return transport.allocate(std::bit_ceil(std::max(bytes, kScratchBytesMin)));
  }
  transport::Transport::Region region = std::move(*found);
  idle_.erase(found);
  return region;
}

void ScratchPool::give_back(transport::Transport::Region region) {
  if (region.bytes.empty()) return;
  if (idle_.size() == kIdleMax) idle_.erase(idle_.begin());
  idle_.push_back(std::move(region));
}

}  // namespace stretto::group
