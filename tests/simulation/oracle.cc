// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/simulation/oracle.h"

#include <cstring>

#include "stretto/kernel/reduce.h"

namespace stretto::simulation {
namespace {

std::uint64_t draw_bits(Random& random, DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return random.below(2);
    case DType::f16:
      return 0x3000 + random.below(0x0fff);
    case DType::bf16:
      return 0x3f00 + random.below(0xff);
    case DType::f32:
      return 0x3e000000 + random.below(0x02000000);
    case DType::f64:
      return 0x3fc0000000000000 + random.below(0x0040000000000000);
    default:
      return random.next();
  }
}

}  // namespace

Bytes draw_values(Random& random, DType dtype, std::size_t count) {
  if (dtype == DType::c64) return draw_values(random, DType::f32, 2 * count);
  if (dtype == DType::c128) return draw_values(random, DType::f64, 2 * count);
  const std::size_t size = size_bytes(dtype);
  Bytes bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = draw_bits(random, dtype);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

Bytes draw_order_free_values(Random& random, DType dtype, ReduceOp op, std::size_t count) {
  if (dtype == DType::c64) return draw_order_free_values(random, DType::f32, op, 2 * count);
  if (dtype == DType::c128) return draw_order_free_values(random, DType::f64, op, 2 * count);
  if (!is_floating_point(dtype)) return draw_values(random, dtype, count);
  const std::size_t size = size_bytes(dtype);
  Bytes bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * size;
    const auto put = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
    const bool negative = random.below(2) == 1;
    const float magnitude = op == ReduceOp::product
                                ? 0.5f * static_cast<float>(1u << random.below(3))
                                : static_cast<float>(1 + random.below(100));
    const float value = negative ? -magnitude : magnitude;
    if (dtype == DType::f16) put(Half(value));
    if (dtype == DType::bf16) put(BFloat16(value));
    if (dtype == DType::f32) put(value);
    if (dtype == DType::f64) put(static_cast<double>(value));
  }
  return bytes;
}

Bytes reduced(const std::vector<Bytes>& inputs, DType dtype, ReduceOp op) {
  std::vector<kernel::Input> views;
  for (const Bytes& input : inputs) views.push_back({input.data(), dtype});
  Bytes result(inputs.front().size());
  void* output = result.data();
  const int ranks = static_cast<int>(inputs.size());
  kernel::reduce({.dtype = dtype,
                  .output_dtype = dtype,
                  .op = op,
                  .divisor = op == ReduceOp::mean ? ranks : 1,
                  .count = result.size() / size_bytes(dtype),
                  .inputs = views,
                  .outputs = {&output, 1}})
      .or_throw();
  return result;
}

}  // namespace stretto::simulation
