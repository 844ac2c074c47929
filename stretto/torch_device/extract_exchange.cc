// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/extract_exchange.h"

#include "stretto/torch_device/device_tensors.h"

namespace stretto::ddp {

void put_together(const FullBucket& full, torch::Device device,
                  const std::vector<std::vector<PlacedExtract>>& of_ranks,
                  const std::vector<View>& plain, const torch::Tensor& reduced, int factor) {
  torch::Tensor sums = tensor_of(full.view, device);
  if (!of_ranks.empty()) sums.zero_();
  for (const std::vector<PlacedExtract>& of_rank : of_ranks) add_extracts(sums, of_rank);
  if (!of_ranks.empty() && factor != 1) sums.mul_(factor);
  // By a number on the device: by one of the host, a GPU would multiply with its inverse.
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
