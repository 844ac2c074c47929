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

// Whether the tensor's memory holds its elements, in some order and without gaps, as they are read.
// The memory of a lazy conjugate or negative holds other values.
bool is_block(const torch::Tensor& tensor);

// The bytes of tensors, for code that knows no strides. If a tensor on the CPU fills a block of
// memory in whatever order (contiguous, channels-last, transposed), its bytes are that block. The
// bytes of any other tensor, also of a lazy conjugate or negative and of a tensor on a device, are
// a contiguous copy on the CPU. All tensors are strided. Short tensors of one type on one device
// are copied together: a model has dozens of buffers, and each copy would wait for the device.
class TensorBytes {
 public:
  explicit TensorBytes(std::vector<torch::Tensor> tensors);

  // One span per tensor, valid as long as this object.
  const std::vector<ByteSpan>& spans() const { return spans_; }
  // The elements of tensor `index`.
  View view(std::size_t index) const;
  // Writes the contents of copies back to their tensors.
  void write_back();
  // Overwrites the tensors with the root's. Collective, blocks; lengths must be equal on all ranks.
  void broadcast(Communicator& communicator, const BroadcastOptions& options);

 private:
  struct Gathered {
    std::vector<std::size_t> indices;
    std::size_t bytes = 0;  // Of all these tensors.
    torch::Tensor block;    // Copies of these tensors, one behind the other.
  };
  void gather(std::size_t index);
  void copy_to_host(Gathered& gathered);

  std::vector<torch::Tensor> tensors_;
  std::vector<torch::Tensor> blocks_;  // tensors_[i] itself, or its contiguous copy.
  std::vector<Gathered> gathered_;
  std::vector<ByteSpan> spans_;
};

}  // namespace stretto::ddp
