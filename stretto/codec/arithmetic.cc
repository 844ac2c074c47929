// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/arithmetic.h"

#include "stretto/base/dtype.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/scale.h"

namespace stretto::codec {

// A reduction of one input converts between its dtypes.
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

void multiply(const View& values, double factor) {
  View reals = values;
  if (is_complex(values.dtype)) {  // A complex number is two reals.
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
