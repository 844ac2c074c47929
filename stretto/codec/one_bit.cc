// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "stretto/base/round_up.h"
#include "stretto/codec/whole_codec.h"

namespace stretto::codec {
namespace {

// Messages with, for each section, signs in words and then scales, padded to 8 bytes. So neither
// side needs a buffer for more than one section.
class OneBit final : public WholeCodec {
 public:
  explicit OneBit(const RoundingOptions& options)
      : WholeCodec(Kind::one_bit, options.stochastic ? "one_bit, stochastic" : "one_bit"),
        stochastic_(options.stochastic) {}

  // With stochastic rounding, each element is sent as the greatest magnitude of its block or the
  // negative of it, however small the element is.
  bool is_contraction() const override { return !stochastic_; }

 private:
  static std::size_t sign_bytes(std::size_t count) { return kernel::one_bit_words(count) * 8; }
  static std::size_t scale_bytes(std::size_t count) {
    return kernel::one_bit_blocks(count) * sizeof(float);
  }
  static std::size_t section_bytes(std::size_t count) {
    return sign_bytes(count) + round_up(scale_bytes(count), 8);
  }

  std::size_t payload_bytes(std::size_t count, std::size_t) const override {
    return count / kSection * section_bytes(kSection) + section_bytes(count % kSection);
  }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override;
  void read_section(std::span<const std::byte> payload, std::size_t, std::size_t first,
                    std::span<float> sums) const override;
  std::optional<Extraction> extraction(std::size_t, const Position&) const override {
    if (stochastic_) return std::nullopt;
    return Extraction{
        .rounded = DType::boolean, .block = kernel::kOneBitBlock, .section = kSection};
  }

  const bool stochastic_;
};

struct Room {
  std::uint64_t signs[kernel::one_bit_words(kSection)];
  float scales[kernel::one_bit_blocks(kSection)];
};

std::size_t OneBit::write(const Task& task, std::vector<std::byte>& out) const {
  std::byte* to = append(out, payload_bytes(task.carry.size(), 0));
  kernel::Rounding rounding = rounding_at(stochastic_, task.position);
  Room room;
  for (std::size_t first = 0; first < task.carry.size(); first += kSection) {
    const std::size_t count = std::min(kSection, task.carry.size() - first);
    kernel::quantize_one_bit(task.carry.subspan(first, count), rounding,
                             {room.signs, kernel::one_bit_words(count)},
                             {room.scales, kernel::one_bit_blocks(count)});
    std::memcpy(to, room.signs, sign_bytes(count));
    std::memcpy(to + sign_bytes(count), room.scales, scale_bytes(count));
    to += section_bytes(count);
    // With key + 1, each element would get the random number of the element after it in this
    // section.
    rounding.key = Random(rounding.key).next();
  }
  return task.carry.size();
}

void OneBit::read_section(std::span<const std::byte> payload, std::size_t, std::size_t first,
                          std::span<float> sums) const {
  const std::byte* from = payload.data() + first / kSection * section_bytes(kSection);
  Room room;
  for (std::size_t done = 0; done < sums.size(); done += kSection) {
    const std::size_t count = std::min(kSection, sums.size() - done);
    std::memcpy(room.signs, from, sign_bytes(count));
    std::memcpy(room.scales, from + sign_bytes(count), scale_bytes(count));
    kernel::add_one_bit({room.signs, kernel::one_bit_words(count)},
                        {room.scales, kernel::one_bit_blocks(count)}, sums.subspan(done, count));
    from += section_bytes(count);
  }
}

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> one_bit(const RoundingOptions& options) {
  return std::make_shared<codec::OneBit>(options);
}
}  // namespace stretto
