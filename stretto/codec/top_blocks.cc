// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/scratch.h"
#include "stretto/codec/sparse_codec.h"
#include "stretto/kernel/select.h"

namespace stretto::codec {
namespace {

// The mean magnitude as bits that are ordered as means are; infinity and NaN are above all numbers.
std::uint32_t weight(std::span<const float> block, std::size_t length) {
  constexpr std::size_t kLanes = 4;  // Sums that do not wait for each other.
  std::array<double, kLanes> sums = {};
  std::size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += std::abs(block[i + lane]);
  }
  for (; i < block.size(); ++i) sums[0] += std::abs(block[i]);
  const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return kernel::magnitude_bits(static_cast<float>(sum / static_cast<double>(length)));
}

class TopBlocks final : public SparseCodec {
 public:
  explicit TopBlocks(const TopBlocksOptions& options)
      : SparseCodec(Kind::top_blocks, name_of(options), options.values, options.block_elements),
        density_(options.density),
        block_(options.block_elements) {}

 private:
  static std::string name_of(const TopBlocksOptions& options) {
    check_density(options.density, "top_blocks");
    if (options.block_elements > 0 && options.block_elements < (std::size_t{1} << 32)) {
      return fmt::format("top_blocks({} of {})", options.density, options.block_elements);
    }
    refuse("top_blocks: blocks of {} elements; they have at least one, and fewer than 2^32",
           options.block_elements);
  }

  std::size_t blocks_of(std::size_t count) const { return round_up(count, block_) / block_; }
  std::optional<std::size_t> values_of(std::size_t count, std::uint64_t) const override {
    return std::min(count, part_of(blocks_of(count), density_) * block_);
  }
  std::size_t choose(const Task& task) const override;

  const double density_;
  const std::size_t block_;
};

std::size_t TopBlocks::choose(const Task& task) const {
  const std::size_t count = task.carry.size();
  const std::size_t blocks = blocks_of(count);
  const std::size_t wanted = part_of(blocks, density_);
  if (wanted == 0) return 0;
  const auto block = [&](std::size_t b) {
    return task.carry.subspan(b * block_, std::min(block_, count - b * block_));
  };
  const auto weights = room(task.scratch.magnitudes, blocks);
  for (std::size_t b = 0; b < blocks; ++b) weights[b] = weight(block(b), block_);
  const std::size_t most = std::min(count, wanted * block_);
  const auto indices = room(task.scratch.indices, std::max(blocks, most));
  const auto values = room(task.scratch.values, most);
  const auto order = indices.first(blocks);
  std::ranges::copy(weights, order.begin());
  const auto place = order.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(order.begin(), place, order.end(), std::greater<>());
  const std::uint32_t cut = *place;
  const auto above = std::count_if(order.begin(), place, [=](auto other) { return other > cut; });
  std::size_t equal = wanted - static_cast<std::size_t>(above), kept = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    if (weights[b] < cut || (weights[b] == cut && equal == 0)) continue;
    if (weights[b] == cut) --equal;
    for (float& value : block(b)) {
      indices[kept] = static_cast<std::uint32_t>(&value - task.carry.data());
      values[kept++] = std::exchange(value, 0.0f);
    }
  }
  return kept;
}

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> top_blocks(const TopBlocksOptions& options) {
  return std::make_shared<codec::TopBlocks>(options);
}
}  // namespace stretto
