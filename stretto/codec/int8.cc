// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/round_up.h"
#include "stretto/codec/whole_codec.h"

namespace stretto::codec {
namespace {

// Messages with codes, then scales, padded to 8 bytes.
class Int8 final : public WholeCodec {
 public:
  explicit Int8(const RoundingOptions& options)
      : WholeCodec(Kind::int8, options.stochastic ? "int8, stochastic" : "int8"),
        stochastic_(options.stochastic) {}

 private:
  std::size_t payload_bytes(std::size_t count, std::size_t) const override {
    return round_up(count + kernel::int8_blocks(count), 8);
  }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override {
    const std::size_t count = task.carry.size();
    std::byte* const to = append(out, payload_bytes(count, count));
    kernel::quantize_int8(
        task.carry, rounding_at(stochastic_, task.position),
        {reinterpret_cast<std::int8_t*>(to), count},
        {reinterpret_cast<std::uint8_t*>(to) + count, kernel::int8_blocks(count)});
    return count;
  }
  void read_section(std::span<const std::byte> payload, std::size_t count, std::size_t first,
                    std::span<float> sums) const override {
    const std::byte* const codes = payload.data() + first;
    const std::byte* const scales = payload.data() + count + first / kernel::kInt8Block;
    kernel::add_int8(
        {reinterpret_cast<const std::int8_t*>(codes), sums.size()},
        {reinterpret_cast<const std::uint8_t*>(scales), kernel::int8_blocks(sums.size())}, sums);
  }

  std::optional<Extraction> extraction(std::size_t, const Position& position) const override {
    Extraction how{.rounded = DType::i8, .block = kernel::kInt8Block};
    if (stochastic_) how.key = rounding_at(true, position).key;
    return how;
  }

  const bool stochastic_;
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> int8(const RoundingOptions& options) {
  return std::make_shared<codec::Int8>(options);
}
}  // namespace stretto
