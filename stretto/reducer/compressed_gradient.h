// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// What is remembered of a gradient.
struct CompressedReduction::Gradient {
  std::string name;
  std::shared_ptr<const Codec> codec;  // Null: it travels as it is.
  std::vector<float> residual;         // Empty if there is no codec.
  bool has_residual = false;           // It may be other than zero.
  std::vector<float> momentum;         // Empty if there is none.
  std::uint32_t hint = 0;
  std::uint64_t key = 0;
};

}  // namespace stretto
