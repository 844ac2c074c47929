// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/packing.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "stretto/base/round_up.h"
#include "stretto/kernel/copy.h"
#include "stretto/kernel/scale.h"

namespace stretto::group {
namespace {

constexpr std::size_t kScratchBytesMin = 64 * 1024;
// Idle regions that a group keeps.
constexpr std::size_t kIdleMax = 4;

}  // namespace

std::size_t Packing::source_bytes() const {
  std::size_t bytes = parts.source.bytes();
  for (const ConstView& part : parts.more) bytes += part.bytes();
  return bytes;
}

std::size_t Packing::target_bytes() const {
  std::size_t bytes = 0;
  for (const View& part : parts.targets) bytes += part.bytes();
  return bytes;
}

std::size_t Packing::output_begin() const {
  return apart ? round_up(source_bytes(), kCacheLineBytes) : 0;
}

std::size_t Packing::bytes() const {
  return std::max(source_bytes(), output_begin() + target_bytes());
}

Status Packing::pack(execution::Turn& turn) {
  std::byte* to = destination != nullptr ? destination : scratch.bytes.data();
  for (std::size_t i = 0; i <= parts.more.size(); ++i) {
    const ConstView& part = i == 0 ? parts.source : parts.more[i - 1];
    while (packed.step == i && !turn.is_over()) {
      const std::size_t bytes = size_bytes(part.dtype);
      const std::size_t first = packed.element;
      const std::size_t count = turn.take(part.count - first, 2 * bytes);
      if (!packed.move(count, part.count)) continue;
      STRETTO_RETURN_IF_ERROR(
          kernel::scale(parts.factor, part.slice(first, count), to + first * bytes, part.bytes()));
    }
    to += part.bytes();
  }
  return {};
}

void Packing::unpack(execution::Turn& turn) {
  const std::byte* from = scratch.bytes.data() + output_begin();
  for (std::size_t i = 0; i < parts.targets.size(); ++i) {
    const View& target = parts.targets[i];
    while (unpacked.step == i && !turn.is_over()) {
      const std::size_t bytes = size_bytes(target.dtype);
      const std::size_t first = unpacked.element;
      const std::size_t count = turn.take(target.count - first, 2 * bytes);
      if (!unpacked.move(count, target.count)) continue;
      kernel::copy(static_cast<std::byte*>(target.data) + first * bytes, from + first * bytes,
                   count * bytes, kernel::Store::automatic, target.bytes());
    }
    from += target.bytes();
  }
}

std::size_t scratch_bytes_for(std::size_t bytes) {
  const std::size_t least = std::max(bytes, kScratchBytesMin);
  return round_up(least, std::bit_floor(least) / 8);
}

Result<transport::Region> ScratchPool::take(std::size_t bytes, transport::Endpoint& transport) {
  // The smallest region that fits.
  const auto size_or_most = [&](const auto& region) {
    return region.bytes.size() < bytes ? SIZE_MAX : region.bytes.size();
  };
  const auto found = std::ranges::min_element(idle_, {}, size_or_most);
  if (found == idle_.end() || found->bytes.size() < bytes) {
    return transport.allocate(scratch_bytes_for(bytes));
  }
  transport::Region region = std::move(*found);
  idle_.erase(found);
  return region;
}

void ScratchPool::give_back(transport::Region region) {
  if (region.bytes.empty() || region.address.kind() == transport::MemoryKind::device) return;
  if (idle_.size() == kIdleMax) idle_.erase(idle_.begin());
  idle_.push_back(std::move(region));
}

}  // namespace stretto::group
