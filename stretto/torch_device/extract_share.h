// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/torch_device/device_extraction.h"

// How extracts lie in memory of a communicator, whose ranks exchange them there: in shares, which
// hold one extract behind the other, of each the indices, counted from the beginning of the bucket,
// and the numbers. All ranks know the lengths, so nothing else travels.
namespace stretto::ddp {

// What lies in a share begins at a multiple of this, as all dtypes may.
inline constexpr std::size_t kShareAlignment = 16;

std::size_t share_bytes(std::span<const PlacedExtract> extracts);

// Where extracts that are as long as `alike` lie in a share.
std::vector<PlacedExtract> extracts_in(ByteSpan share, std::span<const PlacedExtract> alike,
                                       torch::Device device);

// Behind what the calling thread has begun.
void copy_extracts(std::span<const PlacedExtract> from, ByteSpan share, torch::Device device);

// Behind what the calling thread has begun: gradients that travel as they are, one behind the
// other.
void copy_gradients(std::span<const View> from, ByteSpan to, torch::Device device);

// Makes what the ranks have taken out, times `factor`, the result, in the order of
// ranks, and the other gradients what has been reduced of them, whose bytes lie one behind the
// other.
void put_together(const FullBucket& full, torch::Device device,
                  const std::vector<std::vector<PlacedExtract>>& of_ranks,
                  const std::vector<View>& plain, const torch::Tensor& reduced, int factor = 1);

// Of a bucket: the gradients that travel as they are, and then shares, which are equally long.
struct BucketShares {
  // For so many shares, in memory of the communicator's device.
  void make_room(std::vector<View> gradients, std::size_t bytes_of_share, std::size_t count,
                 torch::Device device, Communicator& communicator);
  ByteSpan plain() const { return memory.bytes().first(plain_bytes); }
  ByteSpan shares(std::size_t first, std::size_t count) const;
  // Submits what reduces the gradients that travel as they are, if there are any.
  Work reduce_plain(const FullBucket& full, Communicator& communicator);
  // What ExtractExchange::finish() does, by the first shares: one for each rank, whose extracts are
  // as long as those of `alike`.
  void finish(const FullBucket& full, torch::Device device,
              const std::vector<std::span<const PlacedExtract>>& alike, int factor = 1) const;

  std::vector<View> plain_gradients;
  Memory memory;
  std::size_t plain_bytes = 0;
  std::size_t share_bytes = 0;
  TimePoint sent;  // When reduce_plain() has returned.
};

}  // namespace stretto::ddp
