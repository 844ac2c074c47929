// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "stretto/codec/scratch.h"
#include "stretto/codec/sparse_codec.h"
#include "stretto/kernel/select.h"

namespace stretto::codec {
namespace {

class RandomK final : public SparseCodec {
 public:
  explicit RandomK(const RandomKOptions& options)
      : SparseCodec(Kind::one_of_each, name_of(options), options.values, 0),
        density_(options.density) {}

 private:
  static std::string name_of(const RandomKOptions& options) {
    check_density(options.density, "random_k");
    return fmt::format("random_k({})", options.density);
  }

  std::optional<std::size_t> values_of(std::size_t count, std::uint64_t) const override {
    return part_of(count, density_);
  }
  std::size_t choose(const Task& task) const override {
    const std::size_t wanted = part_of(task.carry.size(), density_);
    const std::span indices = room(task.scratch.indices, wanted);
    guess(task.position, task.carry.size(), indices);
    const std::span values = room(task.scratch.values, wanted);
    for (std::size_t j = 0; j < wanted; ++j) {
      values[j] = std::exchange(task.carry[indices[j]], 0.0f);
    }
    // Whether what is wrong is among the elements drawn is chance; that something is wrong is said.
    if (task.greatest >= kernel::kInfinityBits && wanted > 0) {
      values[0] = std::numeric_limits<float>::quiet_NaN();
    }
    return wanted;
  }
  void guess(const Position& position, std::size_t count,
             std::span<std::uint32_t> indices) const override {
    const std::size_t parts = indices.size();
    if (parts == 0) return;
    // Of a part, in elements and 2^-32 of one; rounded up, so that the last ends with the vector.
    const std::uint64_t width = ((std::uint64_t{count} << 32) + parts - 1) / parts;
    Random random(position.shared_key ^ Random(position.step).next());
    std::uint64_t first = 0;
    for (std::size_t j = 0; j < parts; ++j) {
      const std::uint64_t next = (j + 1) * width >> 32;
      const std::uint64_t into = (random.next() >> 32) * (next - first) >> 32;
      indices[j] = static_cast<std::uint32_t>(first + into);
      first = next;
    }
  }

  const double density_;
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> random_k(const RandomKOptions& options) {
  return std::make_shared<codec::RandomK>(options);
}
}  // namespace stretto
