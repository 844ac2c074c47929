// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::kernel {

// Writes the elements of `source` times `factor` to `target`, which is another place or the same
// one. `factor` is not rounded to f16 or bf16 before the multiplication. A factor of 1 copies any
// dtype, as a part of a copy of `whole_bytes` (copy.h). Other factors fail for all dtypes but f16,
// bf16, f32 and f64. Never blocks; any thread.
Status scale(double factor, const ConstView& source, std::byte* target,
             std::size_t whole_bytes = 0);

}  // namespace stretto::kernel
