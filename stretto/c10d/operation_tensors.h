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

// The tensors of one operation as the buffers that the library works on, and what keeps them alive.
// Elements are taken in the order of their indices, whatever the strides: a tensor that is not
// contiguous is worked on as a contiguous copy, and an output of that kind is copied back at the
// end, so that ranks with other strides get the same. So it is with a tensor on the communicator's
// device if the ranks map memory there and this is other memory, with one on a device where the
// communicator has none, and with what messages are made of: its copy lies in a block that is
// mapped, or of the host, and those of a list lie in one block, one behind the other, so that they
// are one buffer.
//
// Of a type that the library does not know, the bytes: enough for what is moved, and not for what
// is reduced. All functions throw ValueError for a tensor that the communicator cannot reach, is
// sparse, of a type that cannot be reduced, on another device than the others, or (of outputs) has
// several elements in one place.
//
// On a device, what the tensors hold is what the stream makes that is the calling thread's current
// one. Copies go there, and the operation is to begin behind it.
class OperationTensors {
 public:
  enum class Use { moved, reduced };

  // Takes tensors of the CPU and of the device of `communicator` if it has one, or of any.
  // `blocks`, unless the communicator takes all memory of its device, is for copies.
  OperationTensors(std::weak_ptr<const Communicator> communicator,
                   std::shared_ptr<DeviceBlocks> blocks, Use use)
      : use_(use), communicator_(std::move(communicator)), blocks_(std::move(blocks)) {}

  // Not to be written to, though some operations take the one buffer that others write to.
  View input(const at::Tensor& tensor);
  View output(const at::Tensor& tensor);
  View in_place(const at::Tensor& tensor);
  std::vector<ConstView> inputs(const std::vector<at::Tensor>& tensors);
  std::vector<View> outputs(const std::vector<at::Tensor>& tensors);

  // What operations would be told of the tensor, which is not copied.
  ConstView describe(const at::Tensor& tensor);
  // Whether operations work on the memory of that tensor itself.
  bool is_taken_as_it_is(const at::Tensor& tensor) const;

  // Whether tensors have come that lie on a device whose memory the ranks map.
  bool are_mapped() const { return stream_ && blocks_ != nullptr && !are_by_host(); }
  bool has_copies() const { return !copies_.empty(); }
  // The caller's stream; nothing on the CPU.
  const std::optional<c10::Stream>& stream() const { return stream_; }
  // Behind which the operation is to begin on the device; null: there is none, or the default one.
  void* stream_handle() const {
    return stream_ && !are_by_host() ? stream_->native_handle() : nullptr;
  }
  // Before the operation is submitted: where copies are on the host, waits for that stream.
  void wait_for_caller();
  // Tells the device that memory of these tensors may be in use there until `stream` is done.
  void use_on(const c10::Stream& stream) const;
  // Brings results from copies to where they belong; on a device, on the caller's stream.
  void write_back();
  // Where write_back() does so; nothing where no results are copied, or on the CPU.
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
  // That of what operations work on. Where ranks map devices, what has no elements begins there,
  // too: by that, a rank that has nothing tells where the others have something.
  View view(const at::Tensor& block) const;
  // A contiguous tensor of its kind, where operations work on it.
  at::Tensor make_block(const at::Tensor& tensor);
  // Where tensors of a list lie apart, or one has to be copied to a block, all are, to the same.
  void begin_list(const std::vector<at::Tensor>& tensors);
  void end_list() { list_block_.reset(); }

  Use use_;
  c10::SmallVector<at::Tensor, 2> kept_;
  std::vector<Copy> copies_;
  std::weak_ptr<const Communicator> communicator_;  // Whose end ends its operations.
  std::shared_ptr<DeviceBlocks> blocks_;
  std::optional<c10::Device> device_;  // That all tensors are on.
  std::optional<c10::Stream> stream_;  // The caller's, unless that is the CPU.
  // The block of the list that is being taken, and how much of it is.
  std::shared_ptr<std::byte> list_block_;
  std::size_t list_bytes_ = 0;
};

}  // namespace stretto::c10d_backend
