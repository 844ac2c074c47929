// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/sparse_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "stretto/base/check.h"
#include "stretto/base/error.h"
#include "stretto/base/half.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/index_set.h"
#include "stretto/codec/scratch.h"
#include "stretto/kernel/quantize.h"
#include "stretto/kernel/select.h"

namespace stretto::codec {
namespace {

constexpr std::size_t kPadding = 8;

std::size_t value_bytes(ValueFormat format, std::size_t count) {
  if (format == ValueFormat::f32) return round_up(count * sizeof(float), kPadding);
  if (format == ValueFormat::bf16) return round_up(count * sizeof(BFloat16), kPadding);
  return round_up(count + kernel::int8_blocks(count), kPadding);
}

// To nearest, but a number stays one: what is above all numbers of bf16 would be infinite.
BFloat16 narrowed(float value) {
  constexpr std::uint16_t kInfinity = 0x7F80;
  BFloat16 result(value);
  if ((result.bits & 0x7FFF) == kInfinity && std::isfinite(value)) --result.bits;
  return result;
}

// In: values. Out: what the bytes do not say of them, unless these are f32 and say all.
void write_values(ValueFormat format, std::span<float> values, std::span<std::byte> to) {
  if (values.empty()) return;
  if (format == ValueFormat::f32) {
    std::memcpy(to.data(), values.data(), values.size_bytes());
  } else if (format == ValueFormat::bf16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const BFloat16 said = narrowed(values[i]);
      std::memcpy(to.data() + i * sizeof(said), &said, sizeof(said));
      values[i] -= static_cast<float>(said);
    }
  } else {
    const std::span codes(reinterpret_cast<std::int8_t*>(to.data()), values.size());
    const std::span scales(reinterpret_cast<std::uint8_t*>(to.data()) + values.size(),
                           kernel::int8_blocks(values.size()));
    kernel::quantize_int8(values, {}, codes, scales);
  }
}

void read_values(ValueFormat format, std::span<const std::byte> from, std::span<float> values) {
  if (values.empty()) return;
  if (format == ValueFormat::f32) {
    std::memcpy(values.data(), from.data(), values.size_bytes());
  } else if (format == ValueFormat::bf16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      BFloat16 said;
      std::memcpy(&said, from.data() + i * sizeof(said), sizeof(said));
      values[i] = static_cast<float>(said);
    }
  } else {
    std::ranges::fill(values, 0.0f);
    const std::span codes(reinterpret_cast<const std::int8_t*>(from.data()), values.size());
    const std::span scales(reinterpret_cast<const std::uint8_t*>(from.data()) + values.size(),
                           kernel::int8_blocks(values.size()));
    kernel::add_int8(codes, scales, values);
  }
}

}  // namespace

void check_density(double density, const char* codec) {
  if (density > 0 && density <= 1) return;
  throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                  "{}: the density is {}; it must be above 0 and at most 1", codec,
                                  density));
}

std::size_t part_of(std::size_t count, double density) {
  const auto part = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * density));
  return std::min(count, std::max<std::size_t>(1, part));
}

const char* suffix(ValueFormat format) {
  if (format == ValueFormat::bf16) return ", bf16 values";
  return format == ValueFormat::int8 ? ", int8 values" : "";
}

void SparseCodec::guess(const Position&, std::size_t, std::span<std::uint32_t>) const {
  STRETTO_CHECK(false, "'{}' sends its indices", name());
}

std::size_t SparseCodec::payload_bytes(std::size_t count, std::size_t values) const {
  return (sends_indices_ ? index_set_bytes(count, values) : 0) + value_bytes(format_, values);
}

std::size_t SparseCodec::write(const Task& task, std::vector<std::byte>& out) const {
  const std::size_t count = choose(task);
  const auto indices = std::span<const std::uint32_t>(task.scratch.indices).first(count);
  const auto values = std::span(task.scratch.values).first(count);
  const std::size_t begin = out.size();
  out.resize(begin + payload_bytes(task.carry.size(), count));
  std::span<std::byte> to = std::span(out).subspan(begin);
  if (sends_indices_) {
    const std::size_t bytes = index_set_bytes(task.carry.size(), count);
    write_index_set(indices, task.carry.size(), to.first(bytes));
    to = to.subspan(bytes);
  }
  write_values(format_, values, to);
  if (format_ != ValueFormat::f32) put_back(task.carry, task.scratch, count);
  if (!task.cleared.empty()) {
    for (const std::uint32_t index : indices) task.cleared[index] = 0;
  }
  return count;
}

bool SparseCodec::read(const Payload& payload, std::span<float> sums) const {
  const std::span<std::uint32_t> indices = room(payload.scratch.indices, payload.values);
  std::span<const std::byte> from = payload.bytes;
  if (sends_indices_) {
    const std::size_t bytes = index_set_bytes(sums.size(), payload.values);
    if (!read_index_set(from.first(bytes), sums.size(), indices)) return false;
    from = from.subspan(bytes);
  } else {
    guess(payload.position, sums.size(), indices);
  }
  const std::span<float> values = room(payload.scratch.values, payload.values);
  read_values(format_, from, values);
  for (std::size_t j = 0; j < values.size(); ++j) sums[indices[j]] += values[j];
  return true;
}

}  // namespace stretto::codec
