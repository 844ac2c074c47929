// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/extract_share.h"

#include <cstdint>
#include <utility>

#include "stretto/base/round_up.h"
#include "stretto/torch_device/device_allocation.h"
#include "stretto/torch_device/device_tensors.h"

namespace stretto::ddp {

std::size_t share_bytes(std::span<const PlacedExtract> extracts) {
  std::size_t bytes = 0;
  for (const PlacedExtract& placed : extracts) {
    bytes += round_up(placed.index_bytes(), kShareAlignment) +
             round_up(placed.number_bytes(), kShareAlignment);
  }
  return bytes;
}

std::vector<PlacedExtract> extracts_in(ByteSpan share, std::span<const PlacedExtract> alike,
                                       torch::Device device) {
  std::size_t at = 0;
  const auto next = [&](std::size_t bytes) {
    const torch::Tensor found = tensor_of(share.subspan(at, bytes), device);
    at += round_up(bytes, kShareAlignment);
    return found;
  };
  std::vector<PlacedExtract> extracts;
  for (const PlacedExtract& each : alike) {
    PlacedExtract& placed = extracts.emplace_back(each);
    placed.extract = {};
    if (const std::size_t indices = each.index_bytes(); indices > 0) {
      placed.extract.indices = next(indices).view(torch::kInt);
    }
    placed.extract.numbers = next(each.number_bytes());
  }
  return extracts;
}

void copy_extracts(std::span<const PlacedExtract> from, ByteSpan share, torch::Device device) {
  const std::vector<PlacedExtract> to = extracts_in(share, from, device);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const DeviceExtract& extract = from[i].extract;
    if (extract.indices.defined()) {
      to[i].extract.indices.copy_(extract.indices).add_(static_cast<std::int64_t>(to[i].first));
    }
    to[i].extract.numbers.copy_(extract.numbers);
  }
}

void copy_gradients(std::span<const View> from, ByteSpan to, torch::Device device) {
  std::size_t at = 0;
  for (const View& view : from) {
    tensor_of(to.subspan(at, view.bytes()), device)
        .copy_(tensor_of(ConstByteSpan(view.span()), device));
    at += view.bytes();
  }
}

void BucketShares::make_room(std::vector<View> gradients, std::size_t bytes_of_share,
                             std::size_t count, torch::Device device, Communicator& communicator) {
  plain_gradients = std::move(gradients);
  plain_bytes = 0;
  for (const View& view : plain_gradients) plain_bytes += view.bytes();
  share_bytes = bytes_of_share;
  const std::size_t bytes = round_up(plain_bytes, kShareAlignment) + count * share_bytes;
  if (memory.bytes().size() >= bytes) return;
  memory = {};
  memory = allocate_on(device, communicator, bytes);
}

ByteSpan BucketShares::shares(std::size_t first, std::size_t count) const {
  return memory.bytes().subspan(round_up(plain_bytes, kShareAlignment) + first * share_bytes,
                                count * share_bytes);
}

Work BucketShares::reduce_plain(const FullBucket& full, Communicator& communicator) {
  Work work;
  if (plain_bytes > 0) {
    const DType dtype = full.view.dtype;
    work = communicator.all_reduce(View(plain().data(), plain_bytes / size_bytes(dtype), dtype),
                                   {.op = full.op, .timeout = full.timeout});
  }
  sent = Clock::now();
  return work;
}

void BucketShares::finish(const FullBucket& full, torch::Device device,
                          const std::vector<std::span<const PlacedExtract>>& alike,
                          int factor) const {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    std::vector<std::vector<PlacedExtract>> of_ranks;
    for (std::size_t r = 0; r < alike.size() && share_bytes > 0; ++r) {
      of_ranks.push_back(extracts_in(shares(r, 1), alike[r], device));
    }
    put_together(full, device, of_ranks, plain_gradients, tensor_of(plain(), device), factor);
  });
  full.memory->publish();
}

void put_together(const FullBucket& full, torch::Device device,
                  const std::vector<std::vector<PlacedExtract>>& of_ranks,
                  const std::vector<View>& plain, const torch::Tensor& reduced, int factor) {
  torch::Tensor sums = tensor_of(full.view, device);
  if (!of_ranks.empty()) sums.zero_();
  for (const std::vector<PlacedExtract>& of_rank : of_ranks) add_extracts(sums, of_rank);
  if (!of_ranks.empty() && factor != 1) sums.mul_(factor);
  // Divides by a number on the device: if it were the host's, a GPU would multiply by its inverse.
  if (!of_ranks.empty() && full.op == ReduceOp::mean) {
    sums.div_(torch::full({}, static_cast<double>(of_ranks.size()), sums.options()));
  }
  std::int64_t at = 0;
  for (const View& view : plain) {
    const auto bytes = static_cast<std::int64_t>(view.bytes());
    tensor_of(ConstByteSpan(view.span()), device).copy_(reduced.narrow(0, at, bytes));
    at += bytes;
  }
}

}  // namespace stretto::ddp
