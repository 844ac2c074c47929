// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/extract_share.h"

#include <cstdint>

#include "stretto/base/round_up.h"
#include "stretto/torch/device_tensors.h"

namespace stretto::ddp {

void make_room(Memory& memory, std::size_t bytes, Communicator& communicator) {
  if (memory.bytes().size() >= bytes) return;
  memory = {};
  memory = communicator.allocate_bytes(bytes, communicator.device());
}

std::size_t share_bytes(std::span<const PlacedExtract> extracts) {
  std::size_t bytes = 0;
  for (const PlacedExtract& placed : extracts) {
    bytes += round_up(placed.how.greatest * sizeof(std::uint32_t), kShareAlignment) +
             round_up(placed.how.number_bytes(placed.count), kShareAlignment);
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
    PlacedExtract& placed =
        extracts.emplace_back(PlacedExtract{{}, each.how, each.first, each.count});
    if (const std::size_t indices = each.how.greatest * sizeof(std::uint32_t); indices > 0) {
      placed.extract.indices = next(indices).view(torch::kInt);
    }
    placed.extract.numbers = next(each.how.number_bytes(each.count));
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

std::size_t bytes_of(std::span<const View> gradients) {
  std::size_t bytes = 0;
  for (const View& view : gradients) bytes += view.bytes();
  return bytes;
}

void copy_gradients(std::span<const View> from, ByteSpan to, torch::Device device) {
  std::size_t at = 0;
  for (const View& view : from) {
    tensor_of(to.subspan(at, view.bytes()), device)
        .copy_(tensor_of(ConstByteSpan(view.span()), device));
    at += view.bytes();
  }
}

}  // namespace stretto::ddp
