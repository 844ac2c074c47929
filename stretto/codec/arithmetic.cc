// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include <algorithm>
#include <cstdint>

#include "stretto/base/dtype.h"
#include "stretto/kernel/quantize.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/scale.h"

namespace stretto::codec {

// A reduction of one input is a cast.
void convert(const View& to, const ConstView& from) {
  const kernel::Input input{from.data, from.dtype};
  void* const output = to.data;
  kernel::reduce({.dtype = to.dtype == DType::f32 ? from.dtype : to.dtype,
                  .output_dtype = to.dtype,
                  .count = from.count,
                  .inputs = {&input, 1},
                  .outputs = {&output, 1}})
      .or_throw();
}

template <class Number>
void narrow_and_keep_rest(std::span<float> values, float limit, std::span<std::byte> to) {
  const std::span codes(reinterpret_cast<std::uint16_t*>(to.data()), values.size());
  const float most = std::min(limit, greatest_number<Number>());
  if constexpr (dtype_of<Number> == DType::f16) {
    kernel::quantize_f16(values, most, codes);
  } else {
    kernel::quantize_bf16(values, most, codes);
  }
}

template <class Number>
void widen_and_add(std::span<const std::byte> from, std::span<float> sums) {
  const std::span codes(reinterpret_cast<const std::uint16_t*>(from.data()), sums.size());
  if constexpr (dtype_of<Number> == DType::f16) {
    kernel::add_f16(codes, sums);
  } else {
    kernel::add_bf16(codes, sums);
  }
}

template void narrow_and_keep_rest<Half>(std::span<float>, float, std::span<std::byte>);
template void narrow_and_keep_rest<BFloat16>(std::span<float>, float, std::span<std::byte>);
template void widen_and_add<Half>(std::span<const std::byte>, std::span<float>);
template void widen_and_add<BFloat16>(std::span<const std::byte>, std::span<float>);

void multiply(const View& values, double factor) {
  View reals = values;
  if (is_complex(values.dtype)) {  // Two real numbers behind each other.
    reals.count *= 2;
    reals.dtype = values.dtype == DType::c64 ? DType::f32 : DType::f64;
  }
  kernel::scale(factor, reals, reals.data).or_throw();
}

void divide(std::span<float> values, int divisor) {
  if (divisor == 1) return;
  const kernel::Input input{values.data(), DType::f32};
  void* const output = values.data();
  (void)kernel::reduce({.dtype = DType::f32,
                        .divisor = divisor,
                        .count = values.size(),
                        .inputs = {&input, 1},
                        .outputs = {&output, 1}});
}

}  // namespace stretto::codec
