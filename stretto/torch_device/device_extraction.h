// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <torch/torch.h>

#include "stretto/codec/codec.h"

// The work that codecs leave to devices. Our kernels do it on a GPU if they can be loaded, else
// PyTorch's operators, so it runs on every device that PyTorch has. Results have the bits of the
// host's codecs, except those of a NaN.
namespace stretto::ddp {

// An extract of a vector: its indices, of 32 bits, or of 64 if the host has read them; none if it
// is all of the vector; and the bytes of its numbers.
struct DeviceExtract {
  torch::Tensor indices = {};
  torch::Tensor numbers = {};
};

// An extract of one of several vectors that lie in a larger one. extract_from() gives indices in
// its own vector; add_extracts() takes indices in the larger one.
struct PlacedExtract {
  DeviceExtract extract = {};
  codec::Extraction how = {};
  std::size_t first = 0;     // Of the vector in the larger one.
  std::size_t count = 0;     // Elements of the vector.
  std::size_t elements = 0;  // Elements in the extract.

  std::size_t index_bytes() const { return how.takes_all() ? 0 : elements * sizeof(std::uint32_t); }
  std::size_t number_bytes() const { return how.number_bytes(elements); }
};

// Extracts as `how` says from `carry`, a vector of f32 that begins at element `first` of the larger
// one; `carry` becomes the rest. If `how` does not say how many elements to take, the host waits
// until the device has counted them.
PlacedExtract extract_from(torch::Tensor& carry, const codec::Extraction& how, std::size_t first);

// Adds one rank's extracts to `sums`, which is like the vector that they were taken from. Each
// index must be there once. An index beyond the end counts as the last element, since it may come
// from another rank.
void add_extracts(const torch::Tensor& sums, std::span<const PlacedExtract> extracts);

}  // namespace stretto::ddp
