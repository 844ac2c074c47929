// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "stretto/base/round_up.h"
#include "stretto/codec/scratch.h"
#include "stretto/codec/sparse_codec.h"
#include "stretto/codec/whole_codec.h"

namespace stretto::codec {
namespace {

std::size_t dense_bytes(std::size_t count) { return round_up(count * sizeof(float), 8); }

std::size_t write_all(std::span<float> carry, std::vector<std::byte>& out) {
  std::byte* const to = append(out, dense_bytes(carry.size()));
  if (!carry.empty()) std::memcpy(to, carry.data(), carry.size_bytes());
  std::ranges::fill(carry, 0.0f);
  return carry.size();
}

void add_all(std::span<const std::byte> bytes, std::span<float> sums) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    sums[i] += value;
  }
}

class Dense final : public WholeCodec {
 public:
  Dense() : WholeCodec(Kind::dense, "dense") {}

 private:
  std::size_t payload_bytes(std::size_t count, std::size_t) const override {
    return dense_bytes(count);
  }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override {
    return write_all(task.carry, out);
  }
  void read_section(std::span<const std::byte> payload, std::size_t, std::size_t first,
                    std::span<float> sums) const override {
    add_all(payload.subspan(first * sizeof(float)), sums);
  }
};

// If a message has the values of all elements, it has no indices.
class Nonzeros final : public SparseCodec {
 public:
  Nonzeros() : SparseCodec(Kind::nonzeros, "nonzeros", ValueFormat::f32) {}

 private:
  std::optional<std::size_t> values_of(std::size_t, std::uint64_t) const override {
    return std::nullopt;
  }
  std::size_t payload_bytes(std::size_t count, std::size_t values) const override {
    return values == count ? dense_bytes(count) : SparseCodec::payload_bytes(count, values);
  }
  bool is_shorter(std::size_t count, std::size_t values) const {
    return payload_bytes(count, values) < dense_bytes(count);
  }
  std::optional<Extraction> extraction(std::size_t count, const Position&) const override {
    std::size_t most = 0;  // More values make a longer message.
    for (std::size_t step = std::bit_floor(count); step > 0; step /= 2) {
      if (most + step < count && is_shorter(count, most + step)) most += step;
    }
    return Extraction{.least = std::numeric_limits<float>::denorm_min(), .most = most};
  }
  Search search(std::size_t count, const Position&, std::uint32_t) const override {
    constexpr std::uint32_t kLeastMagnitude = 1;
    return {.limit = kLeastMagnitude, .room = count};
  }
  std::size_t choose(const Task& task) const override { return task.found; }
  std::size_t write(const Task& task, std::vector<std::byte>& out) const override {
    if (is_shorter(task.carry.size(), task.found)) return SparseCodec::write(task, out);
    put_back(task.carry, task.scratch, task.found);
    return write_all(task.carry, out);
  }
  bool read(const Payload& payload, std::span<float> sums) const override {
    if (payload.values != sums.size()) return SparseCodec::read(payload, sums);
    add_all(payload.bytes, sums);
    return true;
  }
  bool read_extract(const Payload& payload, Extract& extract) const override {
    if (payload.values != payload.count) return SparseCodec::read_extract(payload, extract);
    extract.numbers = payload.bytes.first(payload.count * sizeof(float));
    return true;
  }
};

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> dense() { return std::make_shared<codec::Dense>(); }
std::shared_ptr<const Codec> nonzeros() { return std::make_shared<codec::Nonzeros>(); }
}  // namespace stretto
