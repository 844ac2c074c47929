// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto::ddp {

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named);

// Whether the bytes of the tensor's memory are its elements, in some order, and are what is read of
// it. A lazy conjugate or negative is not what its memory says.
bool is_block(const torch::Tensor& tensor);

// The bytes of tensors, for code that knows no strides. A tensor whose elements fill a block of
// memory in whatever order (contiguous, channels-last, transposed) is that block; any other, and
// one that is conjugated or negated only when it is read, or is on a device, is a contiguous copy
// on the CPU. All tensors are strided. Short ones of one type on one device come and go
// together: of the buffers of a model there are dozens, and each copy would wait for the device.
class TensorBytes {
 public:
  explicit TensorBytes(std::vector<torch::Tensor> tensors);

  // One span per tensor, valid as long as this object.
  const std::vector<ByteSpan>& spans() const { return spans_; }
  // The elements of one of them.
  View view(std::size_t index) const;
  // Takes what was written to copies over into their tensors.
  void write_back();
  // Overwrites the tensors with the root's. Collective, blocks; lengths must be equal on all ranks.
  void broadcast(Communicator& communicator, const BroadcastOptions& options);

 private:
  struct Gathered {
    std::vector<std::size_t> indices;
    std::size_t bytes = 0;  // Of all of them.
    torch::Tensor block;    // Their copies, one behind the other.
  };
  void gather(std::size_t index);
  void copy_to_host(Gathered& gathered);

  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> blocks_;  // tensors_[i] itself, or its contiguous copy.
  std::vector<Gathered> gathered_;
  std::vector<ByteSpan> spans_;
};

}  // namespace stretto::ddp
