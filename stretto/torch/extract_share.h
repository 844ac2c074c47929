// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/device_extraction.h"

// How extracts lie in memory of a communicator, whose ranks exchange them there: in shares, which
// hold one extract behind the other, of each the indices, counted from the beginning of the bucket,
// and the numbers. All ranks know the lengths, so nothing else travels.
namespace stretto::ddp {

// At least so long, of the communicator's device.
void make_room(Memory& memory, std::size_t bytes, Communicator& communicator);

// What lies in a share begins at a multiple of this, as all dtypes may.
inline constexpr std::size_t kShareAlignment = 16;

std::size_t share_bytes(std::span<const PlacedExtract> extracts);

// Where extracts that are as long as `alike` lie in a share.
std::vector<PlacedExtract> extracts_in(ByteSpan share, std::span<const PlacedExtract> alike,
                                       torch::Device device);

// Behind what the calling thread has begun.
void copy_extracts(std::span<const PlacedExtract> from, ByteSpan share, torch::Device device);

// Gradients that travel as they are, one behind the other.
std::size_t bytes_of(std::span<const View> gradients);
// Behind what the calling thread has begun.
void copy_gradients(std::span<const View> from, ByteSpan to, torch::Device device);

}  // namespace stretto::ddp
