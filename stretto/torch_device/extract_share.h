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

// How extracts lie in memory of a communicator, where the ranks exchange them. A share holds one
// extract behind the other: the indices of each, counted from the beginning of the bucket, and its
// numbers. All ranks know the lengths, so nothing else is sent.
namespace stretto::ddp {

// Alignment of indices and numbers in a share, enough for all dtypes.
inline constexpr std::size_t kShareAlignment = 16;

std::size_t share_bytes(std::span<const PlacedExtract> extracts);

// Where extracts that are as long as `alike` lie in a share.
std::vector<PlacedExtract> extracts_in(ByteSpan share, std::span<const PlacedExtract> alike,
                                       torch::Device device);

// Copies extracts to a share, behind the work of the calling thread's current stream.
void copy_extracts(std::span<const PlacedExtract> from, ByteSpan share, torch::Device device);

// The same for gradients that travel as they are: they lie one behind the other.
void copy_gradients(std::span<const View> from, ByteSpan to, torch::Device device);

// Writes the result to the bucket. Of compressed gradients, it is the sum of the ranks' extracts,
// added in the order of ranks, times `factor`; of `plain` ones, what `reduced` has for them, one
// behind the other.
void put_together(const FullBucket& full, torch::Device device,
                  const std::vector<std::vector<PlacedExtract>>& of_ranks,
                  const std::vector<View>& plain, const torch::Tensor& reduced, int factor = 1);

// A bucket's gradients that travel as they are, and behind them shares, which are equally long.
struct BucketShares {
  // Makes room for `count` shares, in memory of the communicator's device.
  void make_room(std::vector<View> gradients, std::size_t bytes_of_share, std::size_t count,
                 torch::Device device, Communicator& communicator);
  ByteSpan plain() const { return memory.bytes().first(plain_bytes); }
  ByteSpan shares(std::size_t first, std::size_t count) const;
  // Submits the all_reduce of the gradients that travel as they are, if there are any.
  Work reduce_plain(const FullBucket& full, Communicator& communicator);
  // Does what ExtractExchange::finish() does, with the first shares: one for each rank, with
  // extracts as long as those of `alike`.
  void finish(const FullBucket& full, torch::Device device,
              const std::vector<std::span<const PlacedExtract>>& alike, int factor = 1) const;

  std::vector<View> plain_gradients;
  Memory memory;
  std::size_t plain_bytes = 0;
  std::size_t share_bytes = 0;
  TimePoint sent;  // When reduce_plain() has returned.
};

}  // namespace stretto::ddp
