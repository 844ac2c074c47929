// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <torch/torch.h>

#include "stretto/codec/codec.h"

// What codecs leave to devices, by our kernels on a GPU where they can be loaded, else by PyTorch's
// operators: so every device has it that PyTorch has, and on each with the bits of the host's
// codecs, but for those of a NaN.
namespace stretto::ddp {

// What has been taken out of a vector: indices, of 32 bits, or of 64 where the host has read them,
// none where it is all of the vector; and the bytes of its numbers.
struct DeviceExtract {
  torch::Tensor indices = {};
  torch::Tensor numbers = {};
};

// An extract of one vector of several that lie in one. Indices are those of its own vector as
// extract_from() makes it, and those of the whole for add_extracts().
struct PlacedExtract {
  DeviceExtract extract = {};
  codec::Extraction how = {};
  std::size_t first = 0;     // Element of the vector,
  std::size_t count = 0;     // which has so many,
  std::size_t elements = 0;  // of which so many have been taken out.

  std::size_t index_bytes() const { return how.takes_all() ? 0 : elements * sizeof(std::uint32_t); }
  std::size_t number_bytes() const { return how.number_bytes(elements); }
};

// Does what `how` says with a vector of f32, which begins at element `first` of what it lies in.
// Where that does not say how many elements are taken out, the host waits until the device has
// counted them.
PlacedExtract extract_from(torch::Tensor& carry, const codec::Extraction& how, std::size_t first);

// Adds those of one rank to what they have been taken from. Each index is there once; what lies
// beyond its end counts as its last element, since it may come from another rank.
void add_extracts(const torch::Tensor& sums, std::span<const PlacedExtract> extracts);

}  // namespace stretto::ddp
