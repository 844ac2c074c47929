// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include "stretto/base/view.h"
#include "stretto/c10d/device_blocks.h"
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// Gives the tensors of one operation to the library as buffers, and keeps them alive. Elements are
// in the order of their indices whatever the strides, so that ranks with other strides get the
// same: a tensor that is not contiguous is replaced by a contiguous copy, and such an output is
// copied back at the end. A tensor on a device is also replaced by a copy, in a block of mapped or
// host memory, if ranks map the device's memory and the tensor lies elsewhere, if the communicator
// has no device, or if it is sent or received as a message. Copies of a list lie in one block, one
// behind the other, so that they are one buffer.
//
// A tensor of a type that the library does not know is passed as bytes, which can be moved but not
// reduced. All functions throw ValueError for a tensor that the communicator cannot reach, that is
// sparse, of a type that cannot be reduced, on another device than the others, or (as an output)
// has several elements in one place.
//
// On a device, the tensors hold what the calling thread's current stream computes. Copies are made
// on that stream, and the operation must begin behind it.
class OperationTensors {
 public:
  enum class Use { moved, reduced };

  // Takes tensors on the CPU and on the device of `communicator`; on any device if `blocks` are on
  // the host. `blocks` is for copies; null if the communicator takes all memory of its device.
  OperationTensors(std::weak_ptr<const Communicator> communicator,
                   std::shared_ptr<DeviceBlocks> blocks, Use use)
      : use_(use), communicator_(std::move(communicator)), blocks_(std::move(blocks)) {}

  // Must not be written to. A View, since some operations write to the same argument on other
  // ranks.
  View input(const at::Tensor& tensor);
  View output(const at::Tensor& tensor);
  View in_place(const at::Tensor& tensor);
  std::vector<ConstView> inputs(const std::vector<at::Tensor>& tensors);
  std::vector<View> outputs(const std::vector<at::Tensor>& tensors);

  // The view that an operation would get if it took the tensor's own memory. Makes no copy.
  ConstView describe(const at::Tensor& tensor);
  // Whether operations work on the memory of that tensor itself.
  bool is_taken_as_it_is(const at::Tensor& tensor) const;

  // Whether any tensor so far lies on a device whose memory the ranks map.
  bool are_mapped() const { return stream_ && blocks_ != nullptr && !are_by_host(); }
  bool has_copies() const { return !copies_.empty(); }
  // The caller's stream; nothing on the CPU.
  const std::optional<c10::Stream>& stream() const { return stream_; }
  // The stream behind which the operation must begin on the device; null: the default stream, or
  // none because the operation runs on the host.
  void* stream_handle() const {
    return stream_ && !are_by_host() ? stream_->native_handle() : nullptr;
  }
  // To be called before the operation is submitted: if copies are on the host, waits for that
  // stream.
  void wait_for_caller();
  // Tells the device's allocator that `stream` uses the memory of these tensors.
  void use_on(const c10::Stream& stream) const;
  // Copies results back to their tensors; on a device, on the caller's stream.
  void write_back();
  // The stream of write_back(); nothing if no results are copied, or on the CPU.
  std::optional<c10::Stream> copying_stream() const;

 private:
  struct Copy {
    at::Tensor target;
    at::Tensor block;
  };
  void check(const at::Tensor& tensor);
  View writable(const at::Tensor& tensor, bool is_read);
  bool are_by_host() const { return blocks_ != nullptr && blocks_->are_on_host(); }
  bool is_of_blocks(const at::Tensor& tensor) const;
  // The view of a block. If ranks map devices, a view without elements points to the device, too,
  // so that this rank and others with elements agree that the operation is on the device.
  View view(const at::Tensor& block) const;
  // A contiguous tensor like `tensor`, in memory that operations work on.
  at::Tensor make_block(const at::Tensor& tensor);
  // If the tensors of a list lie apart, or one has to be copied to a block, all are copied to one
  // block.
  void begin_list(const std::vector<at::Tensor>& tensors);
  void end_list() { list_block_.reset(); }

  Use use_;
  c10::SmallVector<at::Tensor, 2> kept_;
  std::vector<Copy> copies_;
  std::weak_ptr<const Communicator> communicator_;  // Its end ends its operations.
  std::shared_ptr<DeviceBlocks> blocks_;
  std::optional<c10::Device> device_;  // The device of all tensors.
  std::optional<c10::Stream> stream_;  // The caller's; nothing on the CPU.
  // The block of the list that is being taken, and how many of its bytes are in use.
  std::shared_ptr<std::byte> list_block_;
  std::size_t list_bytes_ = 0;
};

}  // namespace stretto::c10d_backend
