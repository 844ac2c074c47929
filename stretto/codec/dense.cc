// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>

#include "stretto/base/round_up.h"
#include "stretto/codec/whole_codec.h"

namespace stretto::codec {
namespace {

class Dense final : public WholeCodec {
 public:
  Dense() : WholeCodec(Kind::dense, "dense") {}

 private:
  std::size_t payload_bytes(std::size_t count, std::size_t) const override {
    return round_up(count * sizeof(float), 8);
  }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override {
    const std::size_t count = task.carry.size();
    std::byte* const to = append(out, payload_bytes(count, count));
    if (count > 0) std::memcpy(to, task.carry.data(), task.carry.size_bytes());
    std::ranges::fill(task.carry, 0.0f);
    return count;
  }
  bool read(const Payload& payload, std::span<float> sums) const override {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float value = 0;
      std::memcpy(&value, payload.bytes.data() + i * sizeof(value), sizeof(value));
      sums[i] += value;
    }
    return true;
  }
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> dense() { return std::make_shared<codec::Dense>(); }
}  // namespace stretto
