// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "stretto/base/view.h"

namespace stretto {

// A 64-bit hash of `bytes`, the same on every little-endian machine. It handles several bytes per
// clock cycle. Two different buffers have the same hash with a probability of about 2^-64. It
// detects accidents, not attacks. `seed` chains hashes: content_hash(b, content_hash(a)).
std::uint64_t content_hash(ConstByteSpan bytes, std::uint64_t seed = 0);

}  // namespace stretto
