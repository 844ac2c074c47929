// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/copy.h"

#include <cstring>

#include "hwy/cache_control.h"
#include "stretto/kernel/kernels.h"
#include "stretto/kernel/store_policy.h"

namespace stretto::kernel {

void copy(void* to, const void* from, std::size_t bytes, Store store) {
  if (bytes == 0) return;
  if (!is_non_temporal(store, 2 * bytes)) {
    std::memcpy(to, from, bytes);
    return;
  }
  // Bytes that are combined with nothing.
  find_reduction(DType::u8, ReduceOp::bit_or)({.inputs = &from,
                                               .input_count = 1,
                                               .outputs = &to,
                                               .output_count = 1,
                                               .count = bytes,
                                               .non_temporal = true});
  // A release store does not order non-temporal stores; see reduce().
  hwy::FlushStream();
}

}  // namespace stretto::kernel
