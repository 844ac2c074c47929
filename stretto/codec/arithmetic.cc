// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include <algorithm>
#include <cstdint>

#include "stretto/base/dtype.h"
#include "stretto/kernel/quantize.h"
#include "stretto/kernel/reduce.h"

namespace stretto::codec {
namespace {

// A reduction of one input, which cannot fail, is a cast.
template <class Number, class From, class To>
void cast(std::span<const From> from, std::span<To> to) {
  const kernel::Input input{from.data(), dtype_of<From>};
  void* const output = to.data();
  (void)kernel::reduce({.dtype = dtype_of<Number>,
                        .output_dtype = dtype_of<To>,
                        .count = from.size(),
                        .inputs = {&input, 1},
                        .outputs = {&output, 1}});
}

}  // namespace

template <class Number>
void narrow(std::span<const float> from, std::span<Number> to) {
  cast<Number>(from, to);
}
template <class Number>
void widen(std::span<const Number> from, std::span<float> to) {
  cast<Number>(from, to);
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

template void narrow(std::span<const float>, std::span<Half>);
template void narrow(std::span<const float>, std::span<BFloat16>);
template void widen(std::span<const Half>, std::span<float>);
template void widen(std::span<const BFloat16>, std::span<float>);
template void narrow_and_keep_rest<Half>(std::span<float>, float, std::span<std::byte>);
template void narrow_and_keep_rest<BFloat16>(std::span<float>, float, std::span<std::byte>);
template void widen_and_add<Half>(std::span<const std::byte>, std::span<float>);
template void widen_and_add<BFloat16>(std::span<const std::byte>, std::span<float>);

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
