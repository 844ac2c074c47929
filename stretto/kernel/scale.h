// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::kernel {

// The elements of `source` times `factor`, which is not rounded to f16 or bf16 first, to `target`:
// another place, or the same. Fails where products have no meaning for the dtype. Never blocks; any
// thread.
Status scale(double factor, const ConstView& source, std::byte* target);

}  // namespace stretto::kernel
