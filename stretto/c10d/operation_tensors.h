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
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// The tensors of one operation as the buffers that the library works on, and what keeps them alive.
// Elements are taken in the order of their indices, whatever the strides: a tensor that is not
// contiguous is worked on as a contiguous copy, and an output of that kind is copied back at the
// end, so that ranks with other strides get the same.
//
// Of a type that the library does not know, the bytes: enough for what is moved, while kReduced is
// for what is reduced. All functions throw ValueError for a tensor that the communicator cannot
// reach, is sparse, of a type that cannot be reduced, or (of outputs) has several elements in one
// place.
//
// On a device, what the tensors hold is what the stream makes that is the calling thread's current
// one. It waits for nothing: copies go there, and wait_for_caller() has the operation wait for it.
class OperationTensors {
 public:
  static constexpr bool kReduced = true;

  // Takes tensors of the CPU only.
  OperationTensors() = default;
  // Takes those of the device of `communicator`, too, if it has one.
  explicit OperationTensors(std::weak_ptr<const Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  ConstView input(const at::Tensor& tensor, bool is_reduced = false);
  // The same, for an operation whose one buffer is written to on the other ranks only.
  View source(const at::Tensor& tensor, bool is_reduced = false);
  View output(const at::Tensor& tensor, bool is_reduced = false);
  View in_place(const at::Tensor& tensor, bool is_reduced = false);
  std::vector<ConstView> inputs(const std::vector<at::Tensor>& tensors, bool is_reduced = false);
  std::vector<View> outputs(const std::vector<at::Tensor>& tensors, bool is_reduced = false);

  bool has_copies() const { return !copies_.empty(); }
  // Before the operation is submitted, which waits for the default stream: has that one wait for
  // what the caller's has now.
  void wait_for_caller();
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
  View writable(const at::Tensor& tensor, bool is_read, bool is_reduced);

  c10::SmallVector<at::Tensor, 2> kept_;
  std::vector<Copy> copies_;
  std::weak_ptr<const Communicator> communicator_;  // Whose end ends its operations.
  std::optional<c10::Stream> stream_;  // The caller's, of the device that tensors are on.
};

}  // namespace stretto::c10d_backend
