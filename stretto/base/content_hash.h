// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "stretto/base/view.h"

namespace stretto {

// A 64-bit hash of `bytes`, several bytes per clock cycle, the same on every little-endian machine.
// Two buffers that differ in one bit hash differently but for odds of 2^-64. It finds accidents,
// not attacks. `seed` chains hashes: content_hash(b, content_hash(a)).
std::uint64_t content_hash(ConstByteSpan bytes, std::uint64_t seed = 0);

}  // namespace stretto
