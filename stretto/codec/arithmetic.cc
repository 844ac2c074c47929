// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include "stretto/base/dtype.h"
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

template void narrow(std::span<const float>, std::span<Half>);
template void narrow(std::span<const float>, std::span<BFloat16>);
template void widen(std::span<const Half>, std::span<float>);
template void widen(std::span<const BFloat16>, std::span<float>);

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
