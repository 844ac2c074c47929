// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/sparse_codec.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/half.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/arithmetic.h"
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

// Writes `values` to `to`. `values` then holds the residuals; in format f32, which is exact, it
// stays as it is.
void write_values(ValueFormat format, std::span<float> values, std::span<std::byte> to) {
  if (values.empty()) return;
  if (format == ValueFormat::f32) {
    std::memcpy(to.data(), values.data(), values.size_bytes());
  } else if (format == ValueFormat::bf16) {
    const std::span codes(reinterpret_cast<std::uint16_t*>(to.data()), values.size());
    kernel::quantize_half(DType::bf16, values, greatest_number<BFloat16>(), codes);
  } else {
    const std::span codes(reinterpret_cast<std::int8_t*>(to.data()), values.size());
    const std::span scales(reinterpret_cast<std::uint8_t*>(to.data()) + values.size(),
                           kernel::int8_blocks(values.size()));
    kernel::quantize_int8(values, {}, codes, scales);
  }
}

// Adds consecutive values to the elements that `indices` name.
template <class Number>
class Addition {
 public:
  Addition(std::span<const std::byte> from, std::span<const std::uint32_t> indices,
           std::span<float> sums)
      : from_(from), indices_(indices), sums_(sums) {}

  // Adds the values of the indices before `ready`, or most of them. If the sums do not fit into a
  // cache, each element waits for its own cache line. So the line is prefetched when the index is
  // known, and the value is added after other values. For sums in a cache, prefetching would only
  // cost time.
  void add_until(std::size_t ready) {
    if (!is_in_memory(sums_)) return add(ready);
    for (; asked_ < ready; ++asked_) __builtin_prefetch(&sums_[indices_[asked_]], 1);
    constexpr std::size_t kAhead = 256;
    if (ready > added_ + kAhead) add(ready - kAhead);
  }
  void add_rest() { add(indices_.size()); }

  static bool is_in_memory(std::span<const float> sums) {
    constexpr std::size_t kCachedBytes = std::size_t{8} << 20;
    return sums.size_bytes() > kCachedBytes;
  }

 private:
  float value(std::size_t j) const {
    Number said;
    std::memcpy(&said, from_.data() + j * sizeof(said), sizeof(said));
    return static_cast<float>(said);
  }
  void add(std::size_t end) {
    for (; added_ < end; ++added_) sums_[indices_[added_]] += value(added_);
  }

  const std::span<const std::byte> from_;
  const std::span<const std::uint32_t> indices_;
  const std::span<float> sums_;
  std::size_t asked_ = 0;
  std::size_t added_ = 0;
};

// Decodes int8 codes and their scales into `values`, and returns the bytes of `values`.
std::span<const std::byte> decoded(std::span<const std::byte> from, std::span<float> values) {
  std::ranges::fill(values, 0.0f);
  const std::span codes(reinterpret_cast<const std::int8_t*>(from.data()), values.size());
  const std::span scales(reinterpret_cast<const std::uint8_t*>(from.data()) + values.size(),
                         kernel::int8_blocks(values.size()));
  kernel::add_int8(codes, scales, values);
  return std::as_bytes(values);
}

}  // namespace

const char* suffix(ValueFormat format) {
  if (format == ValueFormat::bf16) return ", bf16 values";
  return format == ValueFormat::int8 ? ", int8 values" : "";
}

std::size_t SparseCodec::payload_bytes(std::size_t count, std::size_t values) const {
  return index_set_bytes(count, values) + value_bytes(format_, values);
}

std::size_t SparseCodec::write(const Task& task, std::vector<std::byte>& out) const {
  const std::size_t count = choose(task);
  const auto indices = room(task.scratch.indices, count);
  const auto values = room(task.scratch.values, count);
  const std::size_t begin = out.size();
  out.resize(begin + payload_bytes(task.carry.size(), count));
  const std::span<std::byte> to = std::span(out).subspan(begin);
  const std::size_t bytes = index_set_bytes(task.carry.size(), count);
  write_values(format_, values, to.subspan(bytes));
  if (format_ != ValueFormat::f32) put_back(task.carry, task.scratch, count);
  if (!task.cleared.empty()) {
    for (const std::uint32_t index : indices) task.cleared[index] = 0;
  }
  write_index_set(indices, task.carry.size(), to.first(bytes));
  return count;
}

bool SparseCodec::read(const Payload& payload, std::span<float> sums) const {
  const std::size_t bytes = index_set_bytes(sums.size(), payload.values);
  std::span<const std::byte> from = payload.bytes.subspan(bytes);
  if (format_ == ValueFormat::bf16) return add_read<BFloat16>(payload, from, sums);
  if (format_ == ValueFormat::int8) {
    from = decoded(from, room(payload.scratch.values, payload.values));
  }
  return add_read<float>(payload, from, sums);
}

void SparseCodec::write_extract(const Extract& extract, std::size_t count,
                                std::span<std::byte> payload) const {
  const std::size_t bytes = index_set_bytes(count, extract.indices.size());
  std::ranges::fill(payload, std::byte{});
  std::ranges::copy(extract.numbers, payload.subspan(bytes).begin());
  write_index_set(extract.indices, count, payload.first(bytes));
}

bool SparseCodec::read_extract(const Payload& payload, Extract& extract) const {
  const std::size_t bytes = index_set_bytes(payload.count, payload.values);
  const std::span<std::uint32_t> indices = room(payload.scratch.indices, payload.values);
  const std::size_t of_numbers = in_format({}).number_bytes(payload.values);
  extract = {.indices = indices, .numbers = payload.bytes.subspan(bytes, of_numbers)};
  return read_index_set(payload.bytes.first(bytes), payload.count, indices);
}

Extraction SparseCodec::in_format(Extraction taken) const {
  if (format_ == ValueFormat::int8) {
    taken.rounded = DType::i8;
    taken.block = kernel::kInt8Block;
  } else if (format_ == ValueFormat::bf16) {
    taken.rounded = DType::bf16;
    taken.limit = greatest_number<BFloat16>();
  }
  return taken;
}

template <class Number>
bool SparseCodec::add_read(const Payload& payload, std::span<const std::byte> from,
                           std::span<float> sums) const {
  const std::span<std::uint32_t> indices = room(payload.scratch.indices, payload.values);
  Addition<Number> addition(from, indices, sums);
  // Reads few words at a time if the sums are prefetched from memory meanwhile.
  const std::size_t words = Addition<Number>::is_in_memory(sums) ? 4 : 32;
  IndexReader reader(payload.bytes.first(index_set_bytes(sums.size(), payload.values)), sums.size(),
                     indices, words);
  while (reader.read_some()) addition.add_until(reader.ready());
  if (!reader.is_complete()) return false;
  addition.add_rest();
  return true;
}

}  // namespace stretto::codec
