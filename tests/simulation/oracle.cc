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
