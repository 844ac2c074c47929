// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/scale.h"

#include <algorithm>
#include <array>

#include "stretto/kernel/copy.h"

namespace stretto::kernel {
namespace {

constexpr std::size_t kBlock = 1024;

// Multiplies by a block of equal numbers, in the accumulation dtype.
template <class T>
Status scale_by(double factor, const ConstView& source, std::byte* target) {
  std::array<T, kBlock> factors;
  factors.fill(static_cast<T>(factor));
  for (std::size_t first = 0; first < source.count; first += kBlock) {
    const ConstView part = source.slice(first, std::min(kBlock, source.count - first));
    const std::array<Input, 2> inputs = {Input{.data = part.data, .dtype = source.dtype},
                                         Input{.data = factors.data(), .dtype = dtype_of<T>}};
    void* output = target + first * size_bytes(source.dtype);
    STRETTO_RETURN_IF_ERROR(reduce({.dtype = source.dtype,
                                    .output_dtype = source.dtype,
                                    .op = ReduceOp::product,
                                    .count = part.count,
                                    .inputs = inputs,
                                    .outputs = {&output, 1},
                                    .store = Store::cached}));
  }
  return {};
}

}  // namespace

Status scale(double factor, const ConstView& source, std::byte* target, std::size_t whole_bytes) {
  if (factor == 1) {
    if (target != source.data) {
      copy(target, source.data, source.bytes(), Store::automatic, whole_bytes);
    }
    return {};
  }
  return source.dtype == DType::f64 ? scale_by<double>(factor, source, target)
                                    : scale_by<float>(factor, source, target);
}

}  // namespace stretto::kernel
