// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "stretto/base/dtype.h"
#include "stretto/base/refuse.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/codec/whole_codec.h"

namespace stretto::codec {
namespace {

// Messages with every element in 16 bits, padded to 8 bytes. Number is Half or BFloat16.
template <class Number>
class Halved final : public WholeCodec {
 public:
  explicit Halved(const HalfOptions& options)
      : WholeCodec(dtype_of<Number> == DType::f16 ? Kind::f16 : Kind::bf16, name_of(options)),
        clip_(rounded_down(options.clip)) {}

  // The greatest bfloat16 is no limit, because the range of floats ends there, too.
  bool is_bounded() const override {
    return dtype_of<Number> == DType::f16 || clip_ < std::numeric_limits<float>::infinity();
  }

 private:
  float limit() const { return std::min(clip_, greatest_number<Number>()); }
  // Rounds down: rounded to nearest, the limit could exceed the given one.
  static float rounded_down(float limit) {
    const Number number(limit);
    if (!(static_cast<float>(number) > limit)) return static_cast<float>(number);
    return static_cast<float>(Number::from_bits(static_cast<std::uint16_t>(number.bits - 1)));
  }
  static std::string name_of(const HalfOptions& options) {
    const std::string_view type = stretto::name(dtype_of<Number>);
    if (!(options.clip > 0) || rounded_down(options.clip) == 0) {
      refuse("{}: values are clipped at {}; it must be a number above 0, in this type as well",
             type, options.clip);
    }
    if (options.clip == std::numeric_limits<float>::infinity()) return std::string(type);
    return fmt::format("{}, clipped at {}", type, options.clip);
  }

  std::size_t payload_bytes(std::size_t count, std::size_t) const override {
    return round_up(count * sizeof(Number), 8);
  }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override {
    const std::size_t count = task.carry.size();
    std::byte* const to = append(out, payload_bytes(count, count));
    const std::span codes(reinterpret_cast<std::uint16_t*>(to), count);
    kernel::quantize_half(dtype_of<Number>, task.carry, limit(), codes);
    return count;
  }
  void read_section(std::span<const std::byte> payload, std::size_t, std::size_t first,
                    std::span<float> sums) const override {
    const auto* const codes = reinterpret_cast<const std::uint16_t*>(payload.data()) + first;
    kernel::add_half(dtype_of<Number>, {codes, sums.size()}, sums);
  }
  std::optional<Extraction> extraction(std::size_t, const Position&) const override {
    return Extraction{.rounded = dtype_of<Number>, .limit = limit()};
  }

  const float clip_;
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> f16(const HalfOptions& options) {
  return std::make_shared<codec::Halved<Half>>(options);
}
std::shared_ptr<const Codec> bf16(const HalfOptions& options) {
  return std::make_shared<codec::Halved<BFloat16>>(options);
}
}  // namespace stretto
