// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/codec/scratch.h"
#include "stretto/codec/sparse_codec.h"
#include "stretto/kernel/select.h"

namespace stretto::codec {
namespace {

class Threshold final : public SparseCodec {
 public:
  explicit Threshold(const ThresholdOptions& options)
      : SparseCodec(Kind::threshold, name_of(options), options.values), limit_(options.limit) {}

 private:
  static std::string name_of(const ThresholdOptions& options) {
    if (options.limit >= 0) return fmt::format("threshold({})", options.limit);
    refuse("threshold: the limit is {}; it must be a number from 0 on", options.limit);
  }

  std::optional<std::size_t> values_of(std::size_t, std::uint64_t) const override {
    return std::nullopt;
  }
  std::optional<Extraction> extraction(std::size_t, const Position&) const override {
    return in_format({.least = limit_});
  }
  // Gives room for a quarter more elements than the last step found, and 1024.
  Search search(std::size_t count, const Position&, std::uint32_t hint) const override {
    return {.limit = kernel::magnitude_bits(limit_),
            .room = std::min(count, std::size_t{hint} + hint / 4 + 1024)};
  }
  std::size_t choose(const Task& task) const override {
    const std::size_t had_room = search(task.carry.size(), task.position, *task.hint).room;
    *task.hint = static_cast<std::uint32_t>(task.found);
    if (task.found > had_room) {
      put_back(task.carry, task.scratch, had_room);
      kernel::take_at_least(task.carry, kernel::magnitude_bits(limit_),
                            room(task.scratch.indices, task.found),
                            room(task.scratch.values, task.found));
    }
    return task.found;
  }

  const float limit_;
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> threshold(const ThresholdOptions& options) {
  return std::make_shared<codec::Threshold>(options);
}
}  // namespace stretto
