// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::kernel {

// The elements of `source` times `factor`, which is not rounded to f16 or bf16 first, to `target`:
// another place, or the same. A factor of 1 copies any dtype, as a part of `whole_bytes` (copy.h);
// others fail where products have no meaning for the dtype. Never blocks; any thread.
Status scale(double factor, const ConstView& source, std::byte* target,
             std::size_t whole_bytes = 0);

}  // namespace stretto::kernel
