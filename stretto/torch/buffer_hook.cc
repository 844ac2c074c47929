// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/buffer_hook.h"

#include <cstddef>

#include "stretto/torch/tensor_bytes.h"

namespace stretto {
std::string BuffersOfRank::name() const { return "rank " + std::to_string(root_.value()); }

void BuffersOfRank::run(const BufferCall& call) {
  ddp::TensorBytes(ddp::tensors_of(call.buffers))
      .broadcast(call.communicator, {.root = call.leader.value_or(root_), .timeout = call.timeout});
}

void MeanOfBuffers::run(const BufferCall& call) {
  ddp::TensorBytes bytes(ddp::tensors_of(call.buffers));
  std::vector<View> averaged;
  std::vector<View> copied;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    const torch::Tensor& buffer = call.buffers[i].tensor;
    const bool has_mean = buffer.is_floating_point() || buffer.is_complex();
    (has_mean ? averaged : copied).push_back(bytes.view(i));
  }
  const Rank root = call.leader.value_or(0);
  if (!averaged.empty()) {
    call.communicator
        .all_reduce_coalesced(averaged, {.op = ReduceOp::mean, .timeout = call.timeout})
        .wait();
  }
  if (!copied.empty()) {
    call.communicator.broadcast_coalesced(copied, {.root = root, .timeout = call.timeout}).wait();
  }
  bytes.write_back();
}

}  // namespace stretto
